"""Save and load trained networks, as files that contain everything needed to use them:

from batchsieve import load_trained

network = load_trained("data/train/digits/best.pt")
labels = network.predict(images)  # paths, PIL images or uint8 (N, H, W, 3), of any size
"""

import dataclasses
import io
import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.artifacts.files import atomic_path
from pipeline.datasets.augmentation import center_box
from pipeline.datasets.decode import full_image
from pipeline.datasets.given_images import GivenImages, square_batches
from pipeline.errors import InputError, explain_out_of_memory, lacks_resources, long_reason
from pipeline.models import build_network
from pipeline.models.network import Network
from pipeline.training.evaluation import evaluation_images
from pipeline.training.loaded_networks import check_format, check_weights, on_device
from pipeline.training.settings import ImageFormat, TrainSettings

# A zip archive, or a pickle, which torch.save wrote before version 1.6.
_STARTS = (b"PK", b"\x80")

Resizing = Literal["square", "center_crop"]
"""How an image of any size becomes the input: scaled to the stored square, whatever its aspect ratio, as `prepare`
does; or its center crop, as training from files (`prepare.storage: files`) evaluates."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedNetwork:
    """A network in evaluation mode, and what its use needs.

    Attributes:
        network: its name, as in params.yaml.
        class_names: in label order.
        format: of the images that it reads.
        resizing: how images of any size become its input.
    """

    model: Network
    network: str
    class_names: tuple[str, ...]
    format: ImageFormat
    resizing: Resizing = "square"

    def __repr__(self) -> str:
        size, device = self.format.image_size, next(self.model.parameters()).device
        return f"TrainedNetwork({self.network}, {len(self.class_names)} classes, images {size}x{size}, {device})"

    @torch.inference_mode()
    def predict_proba(self, images: GivenImages, batch_size: int = 256) -> NDArray[np.float32]:
        """Return the probability of each class, softmax outputs (N, n_classes) float32, whose rows sum to 1.

        Columns are in the order of `class_names`. Images are resized as those of the test split were.

        Args:
            images: paths, PIL images or uint8 (N, H, W, 3), RGB, of any size; or one of them.
            batch_size: images in memory and in a forward pass at a time.

        Raises:
            InputError: an image cannot be read or has another type, or the batch size is below 1.
            OutOfMemory: a pass of `batch_size` does not fit the memory.
        """
        if batch_size < 1:
            raise InputError(f"batch_size: {batch_size}; give 1 or more")
        device = next(self.model.parameters()).device
        side = self.format.crop_size if self.resizing == "center_crop" else self.format.image_size
        region = partial(center_box, crop_size=side) if self.resizing == "center_crop" else full_image
        outputs = []
        with (
            explain_out_of_memory(f"batch_size: {batch_size:,} images in a pass do not fit the memory; lower it"),
            distributed.float32_arithmetic(tf32=False),
        ):
            for squares in square_batches(images, side, region, batch_size=batch_size):
                loader = evaluation_images(squares, self.format, device)
                outputs.append(self.model(loader.evaluation_batch(np.arange(len(squares)))).softmax(1).cpu())
        return torch.cat(outputs).numpy() if outputs else np.empty((0, len(self.class_names)), np.float32)

    def predict(self, images: GivenImages, batch_size: int = 256) -> list[str]:
        """Return the class name of each image; arguments and errors as of `predict_proba`."""
        return [self.class_names[label] for label in self.predict_proba(images, batch_size).argmax(1)]


@dataclass(frozen=True, kw_only=True)
class FoldNetworks:
    """The networks of one extractor.

    Attributes:
        networks: K of them. If K > 1, network k was trained on all training images but those of fold k.
        folds: (N,) int32, the fold of each training image; None if K is 1.
    """

    networks: tuple[TrainedNetwork, ...]
    folds: NDArray[np.int32] | None


def save_trained(
    path: Path, model: Network, settings: TrainSettings, class_names: Sequence[str], *, resizing: Resizing = "square"
) -> None:
    """Write weights and everything needed to use them; loadable with `weights_only=True`."""
    _save(path, _content(model, settings, class_names, resizing))


def save_fold_networks(
    path: Path,
    models: Sequence[Network],
    folds: NDArray[np.int32],
    settings: TrainSettings,
    class_names: Sequence[str],
    *,
    resizing: Resizing = "square",
) -> None:
    """Write the networks of all folds like `save_trained`; `load_trained` returns the first.

    Args:
        folds: (N,), the fold of each training image.
    """
    content = _content(models[0], settings, class_names, resizing)
    content["folds"] = torch.from_numpy(folds)
    content["other_state_dicts"] = [_tensors(model) for model in models[1:]]
    _save(path, content)


def write_with_folds(source: Path, target: Path, folds: NDArray[np.int32]) -> None:
    """Copy an extractor with folds from `source` to `target`, with the folds of other images.

    Args:
        folds: (N,) int32, the fold whose network was not trained on the image.

    Raises:
        InputError: as `load_trained`.
    """
    _save(target, {**_load_content(source), "folds": torch.from_numpy(folds)})


def weight_bytes(settings: TrainSettings) -> int:
    """Return the bytes of all parameters and buffers of a network, without building it in memory."""
    with torch.device("meta"):
        model = build_network(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed)
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def _content(model: Network, settings: TrainSettings, class_names: Sequence[str], resizing: Resizing) -> dict[str, Any]:
    content = {
        "network": settings.network,
        "stem": settings.stem,
        "class_names": list(class_names),
        "format": dataclasses.asdict(settings.format),
        "state_dict": _tensors(model),
    }
    # Left out where it is the default, so that equal networks have the bytes that they had before this key.
    return content if resizing == "square" else {**content, "resizing": resizing}


def _tensors(model: Network) -> dict[str, Tensor]:
    return {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}


def _save(path: Path, content: Mapping[str, Any]) -> None:
    # To a path, torch.save writes the path's name into the file, and temporary names differ. To an open file, it
    # reports a full disk as RuntimeError.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with atomic_path(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_trained(path: Path | str, device: torch.device | str = "cpu") -> TrainedNetwork:
    """Load what `save_trained` wrote; of an extractor with folds, the network of fold 0.

    Raises:
        InputError: the file is missing, damaged, holds pickled code, or is of another kind; or there is no such device.

    Example:
        >>> import numpy as np
        >>> from batchsieve import load_trained
        >>> network = load_trained("data/train/digits/best.pt")
        >>> network
        TrainedNetwork(resnet18, 10 classes, images 16x16, cpu)
        >>> images = np.zeros((2, 40, 30, 3), dtype=np.uint8)  # of any size
        >>> len(network.predict(images))  # class names
        2
        >>> network.predict_proba(images).shape
        (2, 10)
    """
    content = _load_content(path)
    return _network(path, content, content.get("state_dict"), device)


def load_fold_networks(path: Path | str, device: torch.device | str = "cpu") -> FoldNetworks:
    """Load all networks of an extractor, one or more.

    Raises:
        InputError: as `load_trained`; or the folds do not match the networks.
    """
    content = _load_content(path)
    others = content.get("other_state_dicts", [])
    states = [content.get("state_dict"), *(others if isinstance(others, list) else [None])]
    networks = tuple(_network(path, content, state, device) for state in states)
    folds: Any = content.get("folds")
    if len(networks) == 1 and folds is None:
        return FoldNetworks(networks=networks, folds=None)
    is_valid = isinstance(folds, Tensor) and folds.dtype == torch.int32 and folds.ndim == 1
    if not is_valid or sorted(set(folds.tolist())) != list(range(len(networks))):
        raise InputError(f"{path}: its folds do not match its {len(networks)} networks; write the file again")
    return FoldNetworks(networks=networks, folds=folds.numpy())


def _load_content(path: Path | str) -> dict[str, Any]:
    content = load_torch_file(Path(path))
    if not isinstance(content, dict) or "class_names" not in content:
        raise InputError(f"{path}: is not a network trained here (it has no class names); give one of data/train")
    return content


def _network(path: Path | str, content: Mapping[str, Any], state: Any, device: torch.device | str) -> TrainedNetwork:
    try:
        class_names = tuple(content["class_names"])
        if isinstance(content["class_names"], str) or not all(isinstance(name, str) for name in class_names):
            raise TypeError("class_names are not texts")
        model = build_network(content["network"], len(class_names), stem=content["stem"], seed=0)
        model.load_state_dict(state)
        check_weights(model)
        image_format = ImageFormat(**content["format"])
        check_format(image_format)
        resizing = content.get("resizing", "square")
        if resizing not in get_args(Resizing):
            raise ValueError(f"resizing {resizing!r}")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RuntimeError) as error:
        if lacks_resources(error):
            raise
        reason = long_reason(error)
        raise InputError(f"{path}: settings and weights do not fit ({reason}); write the file again") from None
    return TrainedNetwork(
        model=on_device(model, device).to(memory_format=torch.channels_last).eval(),
        network=content["network"],
        class_names=class_names,
        format=image_format,
        resizing=resizing,
    )


def check_weights_path(path: Path) -> None:
    """Check that a path, if it exists, is a file on a disk: a device or a pipe may have no end.

    Raises:
        InputError: it is a folder, a device, a pipe or a file of the kernel.
    """
    if path.exists() and (not path.is_file() or path.resolve().is_relative_to("/proc")):
        raise InputError(f"{path}: not a regular file on a disk; give a file of weights")


def read_start(path: Path, n_bytes: int) -> bytes:
    """Return the first bytes of a file of weights, at most `n_bytes`.

    Raises:
        InputError: it is missing, cannot be read, or is not a file on a disk.
    """
    check_weights_path(path)
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except FileNotFoundError:
        raise InputError(f"{path}: no such weights file; check the path") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None


def not_weights(path: Path) -> InputError:
    """Return the error for a file of another kind. It may be anything, so the line does not say to delete it."""
    return InputError(f"{path}: not a weights file; check the path")


def damaged_weights(path: Path, reason: str) -> InputError:
    """Return the error for a file that starts as weights do."""
    return InputError(f"{path}: damaged weights file ({reason}); check the path, or create or download the file again")


def load_torch_file(path: Path) -> Any:
    """Load a `torch.save` file that holds only tensors and plain values.

    Raises:
        InputError: the file is missing, damaged, of another kind, or holds pickled code.
    """
    start = read_start(path, 2)
    if not start:
        raise InputError(
            f"{path}: is empty; if it is a study's, its keep_weights is none, or no run finished and its parquet file "
            "says why"
        )
    if not start.startswith(_STARTS):
        raise not_weights(path)
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path}: is not a plain state dict (not a weights file, or one with pickled code, which is never run); "
            "save it as torch.save(model.state_dict(), path)"
        ) from None
    except Exception as error:
        # Bytes of any kind can provoke any error in the unpickler.
        if lacks_resources(error):
            raise
        raise damaged_weights(path, long_reason(error)) from None


def extract_state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """Return the state dict in a weights file: bare, or under `state_dict` as in this project's files.

    Raises:
        InputError: the file holds no state dict.
    """
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if (
        not isinstance(state, dict)
        or not state
        or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items())
    ):
        raise InputError(f"{path}: holds no state dict (names and tensors); save torch.save(model.state_dict(), path)")
    return state
