"""Pretrained weights through a real HTTP download: checked by their hash, fetched once, and one line if not."""

import hashlib
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torchvision

from pipeline.errors import InputError
from pipeline.training.pretrained import download_weights, imagenet_weights, weight_initializer
from pipeline.training.weights import save_trained
from tests.fixtures.loopback import serving
from tests.fixtures.training import TINY, build_resnet, write_imagenet_weights


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where torch keeps downloads; the user's own is not touched."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path / "torch" / "hub" / "checkpoints"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write_imagenet_weights(tmp_path / "server")


@pytest.fixture
def url(weights: Path) -> Iterator[str]:
    with serving(weights.parent) as root:
        yield f"{root}/{weights.name}"


def test_a_file_is_downloaded_once(weights: Path, cache: Path) -> None:
    with serving(weights.parent) as root:
        path = download_weights(f"{root}/{weights.name}")
    assert path == cache / weights.name
    assert path.read_bytes() == weights.read_bytes()
    # Nobody serves it any more.
    assert download_weights(f"{root}/{weights.name}") == path


@pytest.mark.parametrize("damage", [lambda content: content + b"x", lambda content: content[:1000]])
def test_a_damaged_download_is_refused_and_not_kept(
    weights: Path, url: str, cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(InputError) as caught:
        download_weights(url)
    assert caught.value.key == url
    assert not list(cache.iterdir())


def test_without_a_network_the_place_for_the_file_is_named(weights: Path, cache: Path) -> None:
    with serving(weights.parent) as root:
        pass
    with pytest.raises(InputError) as caught:
        download_weights(f"{root}/{weights.name}")
    assert f" {cache / weights.name}, " in str(caught.value)
    # A person does that.
    (cache / weights.name).write_bytes(weights.read_bytes())
    assert download_weights(f"{root}/{weights.name}") == cache / weights.name


def test_a_cached_file_that_is_not_the_published_one_is_refused(weights: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / weights.name).write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="delete it") as caught:
        download_weights(f"http://127.0.0.1:9/{weights.name}")
    assert caught.value.key == str(cache / weights.name)


def test_a_file_that_the_server_does_not_have_is_named(url: str) -> None:
    with pytest.raises(InputError, match="404"):
        download_weights(url.replace("resnet18", "resnet19"))


def test_names_of_torchvision_carry_the_hash() -> None:
    """What the check relies on."""
    for network in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
        url = torchvision.models.get_model_weights(network).IMAGENET1K_V1.url
        digest = url.rsplit("-", 1)[-1].removesuffix(".pth")
        assert len(digest) == 8
        assert int(digest, 16) > 0
        assert network in url


def test_imagenet_asks_torchvision_for_the_address(url: str, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(IMAGENET1K_V1=SimpleNamespace(url=url))
    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda network: entry)
    assert imagenet_weights("resnet18").name == weights.name
    initialize = weight_initializer("imagenet", "resnet18")
    model = build_resnet()
    assert initialize is not None
    initialize(model)
    theirs = torch.load(weights, weights_only=True)
    assert torch.equal(model.backbone.layer4[0].conv1.weight, theirs["layer4.0.conv1.weight"])
    assert model.backbone.fc.out_features == 4


def test_none_leaves_the_fresh_weights() -> None:
    assert weight_initializer("none", "resnet18") is None


@pytest.mark.parametrize("written", ["own-{network}.pt", "own-resnet18.pt"])
def test_a_path_may_name_the_network(tmp_path: Path, written: str) -> None:
    trained = build_resnet(n_classes=9, seed=5)
    save_trained(tmp_path / "own-resnet18.pt", trained, TINY, [str(i) for i in range(9)])
    initialize = weight_initializer(str(tmp_path / written), "resnet18")
    model = build_resnet()
    assert initialize is not None
    initialize(model)
    assert torch.equal(model.backbone.conv1.weight, trained.backbone.conv1.weight)
    assert model.backbone.fc.out_features == 4


def test_bad_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    without_state_dict = io.BytesIO()
    torch.save({"model": {}, "epoch": 3}, without_state_dict)
    for content in (None, pickle.dumps(hashlib.sha256), without_state_dict.getvalue()):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            weight_initializer(str(path), "resnet18")
        assert caught.value.key == str(path)
