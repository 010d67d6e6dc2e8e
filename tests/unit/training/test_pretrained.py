"""Weights of timm's networks: from files, and from a hub on the loopback interface by a pinned commit and checksum."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor

from pipeline.errors import InputError
from pipeline.models import build_network
from pipeline.models.timm_networks import TimmNetwork
from pipeline.training.pretrained import hub_weights, pretrained_record, weight_initializer
from tests.fixtures.hub import COMMIT, Hub, serving_hub, use_hub
from tests.fixtures.loopback import free_port

_NETWORK = "timm/test_efficientnet"
_REPOSITORY = "timm/test_efficientnet.r160_in1k"
_PINNED = {_NETWORK: COMMIT}


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        tensors: dict[str, Tensor] = timm.create_model("test_efficientnet").state_dict()
    return tensors


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def hub(state: dict[str, Tensor], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving_hub(_REPOSITORY, {"model.safetensors": safetensors.torch.save(state)}) as served:
        use_hub(monkeypatch, served.url, cache)
        yield served


def _initialized(weights: str, revisions: dict[str, str] | None = None) -> TimmNetwork:
    model = build_network(_NETWORK, 4, stem="imagenet", seed=0)
    assert isinstance(model, TimmNetwork)
    initialize = weight_initializer(weights, _NETWORK, revisions)
    assert initialize is not None
    initialize(model)
    return model


def _has_weights(model: TimmNetwork, state: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, state[name]) for name, tensor in model.backbone.state_dict().items())


def test_files_of_safetensors_and_of_torch_save_are_read(state: dict[str, Tensor], tmp_path: Path) -> None:
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pth")
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "c.pt")
    for name in ("a.safetensors", "b.pth", "c.pt"):
        assert _has_weights(_initialized(str(tmp_path / name)), state)
    named = tmp_path / f"{_NETWORK}.safetensors"
    named.parent.mkdir()
    (tmp_path / "a.safetensors").rename(named)
    assert _has_weights(_initialized(str(tmp_path / "{network}.safetensors")), state)


class _Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code of the file was run",))


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth"])
def test_other_files_are_refused_in_one_line_and_code_is_never_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    with pytest.raises(InputError) as raised:
        weight_initializer(str(path), _NETWORK)
    assert raised.value.key == str(path)
    for content in (b"", b"x", pickle.dumps({"bn1.weight": _Attack()})):
        path.write_bytes(content)
        with pytest.raises(InputError) as raised:
            weight_initializer(str(path), _NETWORK)
        assert raised.value.key == str(path)
    torch.save({"bn1.weight": _Attack()}, path)
    with pytest.raises(InputError):
        weight_initializer(str(path), _NETWORK)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth"])
@pytest.mark.parametrize(
    "content",
    [b"x", b"root:x:0:0:root:/root:/bin/sh\n", b"\x89PNG\r\n\x1a\n" + bytes(200)],
    ids=["a byte", "text", "image"],
)
def test_a_file_of_another_kind_is_no_weights_file(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        weight_initializer(str(path), _NETWORK)
    assert str(raised.value) == f"{path}: not a weights file; check the path"


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth"])
def test_a_cut_file_is_damaged_and_not_to_be_deleted(name: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "a.pth":
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(InputError, match="damaged weights file") as raised:
        weight_initializer(str(path), _NETWORK)
    assert raised.value.key == str(path)
    assert "delete" not in str(raised.value)


def test_a_pinned_commit_is_downloaded_once_and_recorded(hub: Hub, state: dict[str, Tensor]) -> None:
    assert _has_weights(_initialized("pretrained", _PINNED), state)
    assert {path for _, path in hub.requests} == {f"/{_REPOSITORY}/resolve/{COMMIT}/model.safetensors"}
    n_requests = len(hub.requests)
    record = pretrained_record("pretrained", _NETWORK, _PINNED)
    assert record == {
        "name": _REPOSITORY,
        "input_size": 160,
        "interpolation": "bicubic",
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "repository": _REPOSITORY,
        "revision": COMMIT,
        "license": "apache-2.0",
        "file": "model.safetensors",
        "sha256": hub.sha256("model.safetensors"),
    }
    assert len(hub.requests) == n_requests, "the cache answers"


def test_a_file_in_the_cache_needs_no_network(
    hub: Hub, state: dict[str, Tensor], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_weights(_NETWORK, _PINNED)
    use_hub(monkeypatch, f"http://127.0.0.1:{free_port()}", cache)
    assert _has_weights(_initialized("pretrained", _PINNED), state)


def test_a_download_needs_a_commit_and_the_error_has_the_newest(hub: Hub) -> None:
    with pytest.raises(InputError) as raised:
        hub_weights(_NETWORK, {})
    assert raised.value.key == "finetune.revisions"
    assert f"revisions: {{{_NETWORK}: {COMMIT}}}" in str(raised.value)
    assert {method for method, _ in hub.requests} == {"HEAD"}, "nothing is downloaded"


def test_offline_one_line_says_which_file_to_put_where(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"http://127.0.0.1:{free_port()}"
    use_hub(monkeypatch, root, cache)
    with pytest.raises(InputError) as raised:
        hub_weights(_NETWORK, _PINNED)
    assert raised.value.key == f"{root}/{_REPOSITORY}/resolve/{COMMIT}/model.safetensors"
    assert "finetune.weights to its path, for several networks as weights/{network}.safetensors" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_commit_that_the_hub_does_not_have_is_refused(hub: Hub) -> None:
    with pytest.raises(InputError) as raised:
        hub_weights(_NETWORK, {_NETWORK: "f" * 40})
    assert "f" * 40 in raised.value.key


def test_content_of_another_checksum_is_refused_and_removed(hub: Hub, state: dict[str, Tensor], cache: Path) -> None:
    hub.stated["model.safetensors"] = "a" * 64
    with pytest.raises(InputError) as raised:
        hub_weights(_NETWORK, _PINNED)
    assert "a" * 64 in str(raised.value)
    assert not [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 1000]
    del hub.stated["model.safetensors"]
    assert _has_weights(_initialized("pretrained", _PINNED), state)


def test_a_changed_file_in_the_cache_is_refused(hub: Hub) -> None:
    path = hub_weights(_NETWORK, _PINNED).path
    with path.open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"1234")
    with pytest.raises(InputError) as raised:
        hub_weights(_NETWORK, _PINNED)
    assert raised.value.key == str(path)
    assert hub_weights(_NETWORK, _PINNED).sha256 == hub.sha256("model.safetensors")


def test_a_cache_without_symlinks_asks_the_hub_for_the_checksum(hub: Hub) -> None:
    """On some file systems the client moves the file to where the link would be."""
    path = hub_weights(_NETWORK, _PINNED).path
    path.resolve().replace(path)
    n_requests = len(hub.requests)
    assert hub_weights(_NETWORK, _PINNED).sha256 == hub.sha256("model.safetensors")
    assert len(hub.requests) > n_requests
    with path.open("r+b") as file:
        file.write(b"1234")
    with pytest.raises(InputError, match="it is deleted, run again"):
        hub_weights(_NETWORK, _PINNED)
    assert hub_weights(_NETWORK, _PINNED).sha256 == hub.sha256("model.safetensors")


def test_a_repository_without_safetensors_has_a_file_of_torch_save(
    state: dict[str, Tensor], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(state, tmp_path / "pytorch_model.bin")
    with serving_hub(_REPOSITORY, {"pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()}) as hub:
        use_hub(monkeypatch, hub.url, cache)
        assert _has_weights(_initialized("pretrained", _PINNED), state)


def test_networks_without_published_weights_are_named(hub: Hub) -> None:
    with pytest.raises(InputError) as raised:
        hub_weights("timm/mixer_s16_224", {})
    assert raised.value.key == "finetune.weights"
    assert hub.requests == []
