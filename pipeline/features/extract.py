"""Extract penultimate features and class probabilities, in evaluation mode without augmentation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.artifacts.prepared import ImageFiles, ImageSource
from pipeline.artifacts.provenance import code_digest
from pipeline.datasets.sources import TrainingImages
from pipeline.distributed import World
from pipeline.errors import InputError
from pipeline.features.trained import PairedSums, SimilarityTransform, fit_similarity
from pipeline.models.network import Network
from pipeline.run_log import Progress
from pipeline.training.evaluation import evaluation_images, rank_rows
from pipeline.training.run_key import RunKey, worker_machine_info
from pipeline.training.weights import FoldNetworks, TrainedNetwork

# Modules that cannot change a result, and settings, whose values are in the key.
_EXCLUDED = frozenset({"pipeline", "pipeline.stages"}) | frozenset(
    f"pipeline.{name}"
    for name in (
        "artifacts.finished", "artifacts.provenance", "config.params", "energy", "errors", "paths", "processes",
        "run_log", "stages.harness", "stages.parallel", "training.run_key", "training.settings",
    )
)  # fmt: skip
# Packages that change features, in addition to those that change training.
_PACKAGES = ("pillow", "pyarrow", "scikit-learn", "scipy")

# Bytes of images copied to the device at a time; bounds the memory for data sets of any length.
_CHUNK_BYTES = 256 * 2**20


def features_cache_key(values: Mapping[str, Any], *, module: str, world: World) -> str:
    """Return a hex digest of everything that determines the bits of features, or of heads fitted on them.

    Args:
        values: settings and digests of the inputs, as plain values.
        module: the module whose import closure computes the result.
        world: its size determines which images form a batch.
    """
    job = {
        **values,
        "ranks": world.size,
        "code": code_digest(module, exclude=_EXCLUDED),
        "versions": {package: metadata.version(package) for package in _PACKAGES},
    }
    return RunKey(job=job, machine=worker_machine_info(world.device, torch.get_num_threads())).fingerprint


@torch.inference_mode()
def extract_features(
    networks: Sequence[TrainedNetwork],
    images: ImageSource,
    out: NDArray[np.float32],
    probabilities: NDArray[np.float32],
    *,
    batch_size: int,
    flip_tta: bool = False,
    world: World,
    progress: Progress,
) -> None:
    """Write the penultimate features of all images, and their class probabilities.

    Each rank writes only its own rows.

    Args:
        networks: the first one gives the features; the probabilities are the mean over all networks.
        images: uint8 (N, H, W, 3), may be memory-mapped; or files.
        out: float32 (N, D), writable.
        probabilities: float32 (N, n_classes), writable.
        batch_size: images per forward pass.
        flip_tta: average over each image and its mirror image.

    Raises:
        InputError: a network gives features that are not finite.
    """
    rows = rank_rows(len(images), world)
    for where, batch in _batches(images, networks[0], batch_size, rows, world.device):
        outputs = [_outputs(network, batch, flip_tta=flip_tta) for network in networks]
        out[where] = outputs[0][0]
        probabilities[where] = np.mean([predicted for _, predicted in outputs], axis=0, dtype=np.float32)
        progress.update(len(batch))


@dataclass(frozen=True, kw_only=True)
class FoldPasses:
    """How the networks of all folds see the images.

    Attributes:
        batch_size: images per forward pass.
        flip_tta: average over each image and its mirror image.
        average_folds: whether the probabilities of an image are the mean of those by the network of its fold and of the
            mean by the other networks, which trained on it; else the former.
    """

    batch_size: int
    flip_tta: bool = False
    average_folds: bool = False


@torch.inference_mode()
def extract_by_fold(
    extractor: FoldNetworks,
    images: ImageSource,
    out: NDArray[np.float32],
    probabilities: NDArray[np.float32],
    *,
    passes: FoldPasses,
    world: World,
    progress: Progress,
) -> list[float]:
    """Extract the features of all images with each network, and the probabilities with that of the image's fold.

    The network of fold k was not trained on the images of fold k. Its features are aligned with those of network 0 by
    the similarity transform that fits best on all images (`fit_similarity`). Heads on one frozen backbone have the same
    features: the backbone processes all images once, and nothing is aligned.

    Args:
        extractor: K networks, and the fold of each image.
        out: float32 (K, N, D), writable: of image i, row out[fold of i, i] is out of fold.
        images, probabilities: as in `extract_features`.

    Returns:
        For each network but the first, the fraction of the variance of the first one's features that its aligned
        features explain, 0 to 1.

    Raises:
        InputError: a network gives features that are not finite, or the same for all images.
    """
    networks = extractor.networks
    folds = np.zeros(len(images), dtype=np.int32) if extractor.folds is None else extractor.folds
    shared = [_has_equal_backbone(network.model, networks[0].model) for network in networks]
    sums = [None if equal else PairedSums(out.shape[2]) for equal in shared[1:]]
    rows = rank_rows(len(images), world)
    for where, batch in _batches(images, networks[0], passes.batch_size, rows, world.device):
        first = _features(networks[0], batch, flip_tta=passes.flip_tta)
        views = [
            first if equal else _features(network, batch, flip_tta=passes.flip_tta)
            for network, equal in zip(networks, shared, strict=True)
        ]
        outputs = [_classified(network, of_network) for network, of_network in zip(networks, views, strict=True)]
        for pairs, (features, _) in zip(sums, outputs[1:], strict=True):
            if pairs is not None:
                pairs.add(features, outputs[0][0])
        out[:, where] = np.stack([features for features, _ in outputs])
        predicted = np.stack([by_network for _, by_network in outputs])
        probabilities[where] = _of_folds(predicted, folds[where], average=passes.average_folds)
        progress.update(len(batch))
    explained = []
    for fold, pairs in enumerate(sums, start=1):
        if pairs is None:
            explained.append(1.0)
            continue
        transform = _fit_over_ranks(pairs, fold, world)
        transform.apply_to_rows(out[fold], rows)
        explained.append(transform.explained)
    return explained


def _of_folds(predicted: NDArray[np.float32], folds: NDArray[np.int32], *, average: bool) -> NDArray[np.float32]:
    """Return the probabilities (B, n_classes) of images from those of all K networks (K, B, n_classes).

    Args:
        folds: (B,), the network that did not train on the image.
        average: over that network and the others, which have half of the weight together; else that network alone.
    """
    out_of_fold: NDArray[np.float32] = predicted[folds, np.arange(len(folds))]
    if not average or len(predicted) == 1:
        return out_of_fold
    in_fold = (predicted.sum(axis=0, dtype=np.float64) - out_of_fold) / (len(predicted) - 1)
    return np.asarray((out_of_fold + in_fold) / 2, dtype=np.float32)


def _has_equal_backbone(network: Network, other: Network) -> bool:
    """Return whether all weights and statistics but those of the last layer are equal."""
    head = {id(tensor) for tensor in network.output_layer.state_dict(keep_vars=True).values()}
    own, theirs = (model.state_dict(keep_vars=True) for model in (network, other))
    return all(id(tensor) in head or torch.equal(tensor, theirs[name]) for name, tensor in own.items())


def _outputs(
    network: TrainedNetwork, batch: Tensor, *, flip_tta: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return features (B, D) and probabilities (B, n_classes) of one batch (B, 3, C, C)."""
    return _classified(network, _features(network, batch, flip_tta=flip_tta))


def _features(network: TrainedNetwork, batch: Tensor, *, flip_tta: bool) -> list[Tensor]:
    """Return the features (B, D) of each view of a batch (B, 3, C, C): the images, and their mirror images."""
    return [network.model.features(view) for view in ([batch, batch.flip(3)] if flip_tta else [batch])]


def _classified(network: TrainedNetwork, views: list[Tensor]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the means over the views of features (B, D) and of their probabilities (B, n_classes)."""
    outputs = [(features.float(), network.model.classify(features).softmax(1).float()) for features in views]
    averaged, probabilities = (torch.stack(values).mean(0).cpu().numpy() for values in zip(*outputs, strict=True))
    if not np.isfinite(averaged).all():
        raise InputError("features: the network gives NaN or infinity; lower finetune.learning_rate")
    return averaged, probabilities


def _fit_over_ranks(pairs: PairedSums, fold: int, world: World) -> SimilarityTransform:
    """Fit the transform on the rows of all ranks; each rank computes it from the same sums."""
    pairs.values = distributed.all_reduce_sum_(torch.from_numpy(pairs.values).to(world.device)).cpu().numpy()
    try:
        return fit_similarity(pairs)
    except ValueError as error:
        raise InputError(f"features: of the network of fold {fold} or 0, {error}; train it for longer") from None


def _batches(
    images: ImageSource, network: TrainedNetwork, batch_size: int, rows: NDArray[np.int64], device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the contiguous `rows` in batches (B, 3, C, C) on the device, with their slices of the output."""
    if isinstance(images, ImageFiles):
        yield from _loaded(evaluation_images(images, network.format, device), rows, batch_size, first=0)
        return
    chunk_size = max(batch_size, _CHUNK_BYTES // images[:1].nbytes)
    for start in range(0, len(rows), chunk_size):
        chunk = rows[start : start + chunk_size]
        loader = evaluation_images(images[chunk[0] : chunk[-1] + 1], network.format, device)
        yield from _loaded(loader, chunk, batch_size, first=int(chunk[0]))


def _loaded(
    loader: TrainingImages, rows: NDArray[np.int64], batch_size: int, *, first: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield batches of a loader whose sample id 0 is row `first`."""
    parts = [rows[start : start + batch_size] - first for start in range(0, len(rows), batch_size)]
    with loader.prefetch((ids, None) for ids in parts):
        for ids in parts:
            yield slice(first + ids[0], first + ids[-1] + 1), loader.evaluation_batch(ids)
