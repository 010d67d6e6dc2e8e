"""Initial weights of networks: from a file, from torchvision, or those that timm publishes on the Hugging Face hub."""

import http.client
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.artifacts.provenance import sha256_of_file
from pipeline.errors import InputError, lacks_resources
from pipeline.models import is_timm, load_backbone
from pipeline.models.network import Network
from pipeline.models.resnet import ResNet
from pipeline.models.timm_networks import TimmNetwork, load_timm_backbone, timm_format
from pipeline.training.weights import (
    check_weights_path,
    damaged_weights,
    extract_state_dict,
    load_torch_file,
    not_weights,
    read_start,
)

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file in a repository on the hub.

    Attributes:
        path: of the copy on this machine.
        repository: such as `timm/resnet18.a1_in1k`.
        name: in the repository.
        revision: the commit.
        sha256: of the content, verified.
    """

    path: Path
    repository: str
    name: str
    revision: str
    sha256: str


def weight_initializer(
    weights: str, network: str, revisions: Mapping[str, str] | None = None
) -> Callable[[Network], None] | None:
    """Return a function that overwrites a fresh network's weights; None for `none`.

    Args:
        weights: `none`, `imagenet`, `pretrained`, or the path of a state dict, in which `{network}` is replaced by the
            network's name.
        network: as in params.yaml, without the number of a replicate.
        revisions: network of timm -> commit, see `hub_weights`.

    Raises:
        InputError: the file is missing, damaged or of another network; or the download fails.
    """
    if weights == "none":
        return None
    path = _weights_path(weights, network, revisions or {})
    state = extract_state_dict(read_weights(path), path)

    def initialize(model: Network) -> None:
        if is_timm(network):
            assert isinstance(model, TimmNetwork), type(model)
            load_timm_backbone(model, network, state, source=str(path))
            return
        assert isinstance(model, ResNet), "extractors are ResNets or networks of timm"
        load_backbone(model, state, source=str(path))

    return initialize


def pretrained_record(weights: str, network: str, revisions: Mapping[str, str]) -> dict[str, Any]:
    """Return the image format of a network of timm and the source of its weights, as plain values.

    Raises:
        InputError: as `weight_initializer`.
    """
    image_format = timm_format(network)
    record: dict[str, Any] = {
        "name": image_format.name,
        "input_size": image_format.input_size,
        "interpolation": image_format.interpolation,
        "mean": list(image_format.mean),
        "std": list(image_format.std),
    }
    if weights == "none":
        return record
    if weights != "pretrained":
        path = _weights_path(weights, network, revisions)
        check_weights_path(path)
        return {**record, "file": path.name, "sha256": sha256_of_file(path)}
    file = hub_weights(network, revisions)
    source = {"repository": file.repository, "revision": file.revision, "license": image_format.license}
    return {**record, **source, "file": file.name, "sha256": file.sha256}


def _weights_path(weights: str, network: str, revisions: Mapping[str, str]) -> Path:
    if weights == "pretrained" and is_timm(network):
        return hub_weights(network, revisions).path
    if weights in ("imagenet", "pretrained"):
        return imagenet_weights(network)
    return Path(weights.replace("{network}", network))


def read_weights(path: Path) -> Any:
    """Load a file of safetensors or of `torch.save`; pickled code is never run.

    Raises:
        InputError: the file is missing, damaged, of another kind, or holds pickled code.
    """
    if path.suffix != ".safetensors":
        return load_torch_file(path)
    # The length of the header, then the header, a JSON object.
    if read_start(path, 9)[8:] != b"{":
        raise not_weights(path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        if lacks_resources(error):
            raise
        raise damaged_weights(path, " ".join(str(error).split())[:120]) from None


def hub_weights(network: str, revisions: Mapping[str, str]) -> HubFile:
    """Return the weights that timm publishes for a network, from the hub client's cache or downloaded into it.

    The commit fixes the content, and the hub states the SHA-256 of a file of weights. Both are checked.

    Args:
        network: of timm, as in params.yaml.
        revisions: network -> commit.

    Raises:
        InputError: no commit is given, the hub cannot be reached or has no such file, or the content is another one.
    """
    import huggingface_hub as hub  # a second to import; few runs need it

    image_format = timm_format(network)
    if image_format.hub_id is None:
        raise InputError(
            f"finetune.weights: pretrained, but timm publishes no weights of {network}; give a file, or none"
        )
    revision = revisions.get(network)
    for name in image_format.hub_files if revision else ():
        cached = hub.try_to_load_from_cache(image_format.hub_id, name, revision=revision)
        # A cache without symlinks does not state the checksum.
        if isinstance(cached, str) and _SHA256.fullmatch(Path(cached).resolve().name):
            return _verified(Path(cached), image_format.hub_id, name, str(revision), None)
    name, metadata = _find_on_hub(network, image_format.hub_id, image_format.hub_files, revision)
    if revision is None:
        raise InputError(
            f"finetune.revisions: has no commit for {network}, and the newest of {image_format.hub_id} is "
            f"{metadata.commit_hash}; write `revisions: {{{network}: {metadata.commit_hash}}}`"
        )
    if metadata.commit_hash != revision:
        raise InputError(
            f"finetune.revisions: {revision} of {network}, but the hub gives commit {metadata.commit_hash}; correct it"
        )
    try:
        path = hub.hf_hub_download(image_format.hub_id, name, revision=revision, library_name="timm")
    except Exception as error:  # noqa: BLE001 - the client's libraries have classes of their own for a lost connection
        raise _not_downloaded(hub.hf_hub_url(image_format.hub_id, name, revision=revision), network, error) from None
    return _verified(Path(path), image_format.hub_id, name, revision, metadata.etag)


def _find_on_hub(network: str, repository: str, names: tuple[str, ...], revision: str | None) -> tuple[str, Any]:
    """Return the name of the weights file and its metadata on the hub; gives up after 10 s without an answer."""
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError

    missing: Exception | None = None
    for name in names:
        url = hub.hf_hub_url(repository, name, revision=revision)
        try:
            return name, hub.get_hf_file_metadata(url, timeout=10)
        except EntryNotFoundError as error:
            missing = error
        except Exception as error:  # noqa: BLE001 - as above
            raise _not_downloaded(url, network, error) from None
    assert missing is not None
    raise _not_downloaded(hub.hf_hub_url(repository, names[0], revision=revision), network, missing)


def _not_downloaded(url: str, network: str, error: Exception) -> InputError:
    reason = (" ".join(str(error).split()) or type(error).__name__)[:160]
    return InputError(
        f"{url}: cannot be downloaded ({reason}); fetch the file where there is a network and set finetune.weights to "
        f"its path, for several networks as weights/{{network}}.safetensors, here weights/{network}.safetensors"
    )


def _verified(path: Path, repository: str, name: str, revision: str, expected: str | None) -> HubFile:
    """Return the file if its content has the SHA-256 that the hub stated.

    Args:
        expected: None for a file in the cache, where the client keeps content under its SHA-256.
    """
    expected, actual = expected or path.resolve().name, sha256_of_file(path)
    if not _SHA256.fullmatch(expected):
        raise InputError(
            f"{path}: the hub states no SHA-256 of it; check the file and set finetune.weights to its path"
        )
    if actual != expected:
        content = path.resolve()
        path.unlink(missing_ok=True)
        content.unlink(missing_ok=True)
        raise InputError(f"{path}: has the SHA-256 {actual}, the hub states {expected}; it is deleted, run again")
    return HubFile(path=path, repository=repository, name=name, revision=revision, sha256=actual)


def imagenet_weights(network: str) -> Path:
    """Return the path of torchvision's ImageNet weights (IMAGENET1K_V1), downloaded once and verified by hash."""
    from torchvision import models  # a second or two to import; few runs need it

    return download_weights(models.get_model_weights(network).IMAGENET1K_V1.url)


def download_weights(url: str) -> Path:
    """Download `url` into torch's cache unless it is there; the hash in its name is verified.

    Raises:
        InputError: no network, or the content, downloaded or in the cache, does not have the hash.
    """
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / url.rsplit("/", 1)[-1]
    digest = path.stem.rsplit("-", 1)[-1]
    if path.exists():
        actual = sha256_of_file(path)
        if not actual.startswith(digest):
            raise InputError(f"{path}: has the SHA-256 {actual}, its name states {digest}; delete it and run again")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, str(path), hash_prefix=digest, progress=False)
    except RuntimeError as error:
        raise InputError(f"{url}: {error}; the download was damaged, run again") from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"{url}: cannot be downloaded ({error}); put the file at {path}, or set finetune.weights to a local file"
        ) from None
    return path
