"""Trained networks as files: what to save with the weights so that three lines can use them.

from pipeline.training.weights import load_trained
network = load_trained("data/train/digits/best.pt")
labels = network.predict(images)        # uint8 (N, H, W, 3), H = W = network.format.image_size
"""

import dataclasses
import io
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.artifacts.atomic import atomic_path
from pipeline.errors import InputError
from pipeline.models import build
from pipeline.models.network import Network
from pipeline.training.images import evaluation_images
from pipeline.training.settings import ImageFormat, TrainSettings


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """A network in evaluation mode with the names of its classes, in label order."""

    model: Network
    network: str
    class_names: tuple[str, ...]
    format: ImageFormat

    @torch.inference_mode()
    def probabilities(self, images: NDArray[np.uint8], batch_size: int = 256) -> NDArray[np.float32]:
        """(N, n_classes) softmax outputs for uint8 images (N, H, W, 3) of the stored size.

        Raises:
            InputError: the images have another size or type.
        """
        size = self.format.image_size
        if images.dtype != np.uint8 or images.shape[1:] != (size, size, 3):
            raise InputError(
                f"images: {images.dtype} of shape {images.shape}; this network takes uint8 (N, {size}, {size}, 3)"
            )
        device = next(self.model.parameters()).device
        loader = evaluation_images(images, self.format, device)
        chunks = [np.arange(start, min(start + batch_size, len(images))) for start in range(0, len(images), batch_size)]
        outputs = [self.model(loader.evaluation_batch(ids)).softmax(1).cpu() for ids in chunks]
        return torch.cat(outputs).numpy() if outputs else np.empty((0, len(self.class_names)), np.float32)

    def predict(self, images: NDArray[np.uint8]) -> list[str]:
        """The class name of each image."""
        return [self.class_names[label] for label in self.probabilities(images).argmax(1)]


def save_trained(path: Path, model: Network, settings: TrainSettings, class_names: Sequence[str]) -> None:
    """Write weights and all that is needed to use them. Loadable with `weights_only=True`."""
    content = {
        "network": settings.network,
        "stem": settings.stem,
        "class_names": list(class_names),
        "format": dataclasses.asdict(settings.format),
        "state_dict": {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()},
    }
    # Given a path, torch.save writes its name into the file, and a temporary one differs every time;
    # given an open file, it hides a full disk behind a RuntimeError.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with atomic_path(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_trained(path: Path | str, device: torch.device | str = "cpu") -> TrainedNetwork:
    """Load what `save_trained` wrote.

    Raises:
        InputError: the file is missing, damaged, holds pickled code, or is of another kind.
    """
    content = load_weights_file(Path(path))
    if not isinstance(content, dict) or "class_names" not in content:
        raise InputError(f"{path}: is not a network trained here (it has no class names); give one of data/train")
    try:
        class_names = tuple(content["class_names"])
        model = build(content["network"], len(class_names), stem=content["stem"], seed=0)
        model.load_state_dict(content["state_dict"])
        image_format = ImageFormat(**content["format"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputError(f"{path}: settings and weights do not fit ({reason}); make the file anew") from None
    return TrainedNetwork(
        model=model.to(device).to(memory_format=torch.channels_last).eval(),
        network=content["network"],
        class_names=class_names,
        format=image_format,
    )


def load_weights_file(path: Path) -> Any:
    """The content of a `torch.save` file that holds nothing but tensors and plain values.

    Raises:
        InputError: missing, damaged, or with pickled code in it.
    """
    if path.exists() and path.stat().st_size == 0:
        raise InputError(
            f"{path}: is empty; where it is a study's, none of its cells finished and its parquet file says why"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path}: no such weights file; check the path") from None
    except PermissionError:
        raise InputError(f"{path}: cannot be read; correct its permissions") from None
    except pickle.UnpicklingError:
        raise InputError(
            f"{path}: is not a plain state dict (it is no weights file, or holds pickled code, which is never run); "
            "save it as torch.save(model.state_dict(), path)"
        ) from None
    except Exception as error:  # noqa: BLE001 - bytes of any kind can provoke any error in the unpickler
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise InputError(f"{path}: damaged weights file ({reason}); delete it and make or fetch it again") from None


def state_dict_of(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in a weights file: bare, or under `state_dict` as this project's files have it.

    Raises:
        InputError: there is none.
    """
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path}: holds no state dict (names and tensors); save torch.save(model.state_dict(), path)")
    return state
