"""Where a network's weights start: fresh, from torchvision's ImageNet weights, or from a file."""

import http.client
from collections.abc import Callable
from pathlib import Path

import torch

from pipeline.errors import InputError
from pipeline.models import load_backbone
from pipeline.models.network import Network
from pipeline.models.resnet import ResNet
from pipeline.training.weights import load_weights_file, state_dict_of

# Of the images that torchvision's weights were trained on.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def initialiser(weights: str, network: str) -> Callable[[Network], None] | None:
    """What overwrites a fresh network's weights; None for `none`.

    Args:
        weights: `none`, `imagenet`, or the path of a state dict in which `{network}` stands for
            the network's name.

    Raises:
        InputError: the file is missing, unsound or of another network; or the download fails.
    """
    if weights == "none":
        return None
    path = imagenet_weights(network) if weights == "imagenet" else Path(weights.replace("{network}", network))
    state = state_dict_of(load_weights_file(path), path)

    def initialise(model: Network) -> None:
        assert isinstance(model, ResNet), "extractors are ResNets"
        load_backbone(model, state, source=str(path))

    return initialise


def imagenet_weights(network: str) -> Path:
    """torchvision's ImageNet weights (IMAGENET1K_V1), downloaded once and checked by their hash."""
    from torchvision import models  # a second or two to import; few runs need it

    return download_weights(models.get_model_weights(network).IMAGENET1K_V1.url)


def download_weights(url: str) -> Path:
    """Fetch `url` into torch's cache unless it is there; the hash in its name is verified.

    Raises:
        InputError: no network, or the content does not have the hash.
    """
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / url.rsplit("/", 1)[-1]
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    digest = path.stem.rsplit("-", 1)[-1]
    try:
        torch.hub.download_url_to_file(url, str(path), hash_prefix=digest, progress=False)
    except RuntimeError as error:
        raise InputError(f"{url}: {error}; the download was damaged, run again") from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"{url}: cannot be downloaded ({error}); put the file at {path}, or set finetune.weights to a local file"
        ) from None
    return path
