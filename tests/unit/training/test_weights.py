"""Trained networks as files: three lines to use them, and nothing in a file is ever run."""

import os
import pickle
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.models import build_network
from pipeline.training.weights import (
    extract_state_dict,
    load_fold_networks,
    load_torch_file,
    load_trained,
    save_fold_networks,
    save_trained,
)
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.training import FLOAT32_ROUNDING, NAMES, SIZE, TINY, bright_images


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of this project with fresh weights."""
    path = tmp_path_factory.mktemp("weights") / "best.pt"
    save_trained(path, build_network("resnet18", len(NAMES), stem="imagenet", seed=0), TINY, NAMES)
    return path


def test_three_lines_load_and_predict(saved: Path) -> None:
    images, _ = bright_images(5)
    network = load_trained(saved)
    labels = network.predict(images)
    assert len(labels) == 5
    assert set(labels) <= set(NAMES)


def test_the_loaded_network_is_the_saved_one(saved: Path) -> None:
    network, model = load_trained(saved), build_network("resnet18", len(NAMES), stem="imagenet", seed=0).eval()
    assert (network.network, network.class_names, network.format) == ("resnet18", NAMES, TINY.format)
    assert not network.model.training
    images, _ = bright_images(7)
    normalized = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.44) / 0.27
    with torch.inference_mode():
        expected = model(normalized).softmax(1).numpy()
    np.testing.assert_allclose(network.predict_proba(images, batch_size=3), expected, atol=FLOAT32_ROUNDING)
    assert network.predict(images) == [NAMES[label] for label in expected.argmax(1)]


def test_it_prints_as_one_line(saved: Path) -> None:
    text = repr(load_trained(saved))
    assert text == f"TrainedNetwork(resnet18, {len(NAMES)} classes, images {SIZE}x{SIZE}, cpu)"


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_has_an_image(saved: Path, batch_size: int) -> None:
    with pytest.raises(InputError) as refused:
        load_trained(saved).predict(np.zeros((1, SIZE, SIZE, 3), np.uint8), batch_size=batch_size)
    assert refused.value.key == "batch_size"


def test_predictions_take_the_center_crop(tmp_path: Path) -> None:
    cropped = replace(TINY, format=replace(TINY.format, crop_size=12))
    save_trained(tmp_path / "w.pt", build_network("resnet18", 4, stem="imagenet", seed=0), cropped, NAMES)
    images, _ = bright_images(3)
    blackened = images.copy()
    blackened[:, :2] = blackened[:, -2:] = blackened[:, :, :2] = blackened[:, :, -2:] = 0
    network = load_trained(tmp_path / "w.pt")
    np.testing.assert_array_equal(network.predict_proba(images), network.predict_proba(blackened))


def test_no_images_have_no_labels(saved: Path) -> None:
    assert load_trained(saved).predict(np.empty((0, SIZE, SIZE, 3), np.uint8)) == []


def test_equal_networks_are_equal_bytes(saved: Path, tmp_path: Path) -> None:
    """Whatever the file is called, and whoever writes it."""
    again = tmp_path / "again.pt"
    save_trained(again, build_network("resnet18", len(NAMES), stem="imagenet", seed=0), TINY, NAMES)
    assert again.read_bytes() == saved.read_bytes()


def test_a_file_is_loadable_with_weights_only(saved: Path) -> None:
    content = torch.load(saved, weights_only=True)
    assert content["format"] == asdict(TINY.format)
    assert (
        extract_state_dict(content, saved).keys()
        == build_network("resnet18", 4, stem="imagenet", seed=0).state_dict().keys()
    )


class _Code:
    """Unpickling it makes a file."""

    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._sentinel,)


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    sentinel, path = tmp_path / "ran", tmp_path / "w.pt"
    torch.save({"class_names": ["a"], "state_dict": _Code(sentinel)}, path)
    for content in (path.read_bytes(), pickle.dumps(_Code(sentinel))):
        path.write_bytes(content)
        with pytest.raises(InputError) as raised:
            load_trained(path)
        assert raised.value.key == str(path)
        assert not sentinel.exists()
    torch.load(_in_place_of(path, _Code(sentinel)), weights_only=False)
    assert sentinel.exists()  # it would have


def _in_place_of(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def _truncated(saved: Path, path: Path) -> None:
    path.write_bytes(saved.read_bytes()[:-5000])


_HOSTILE: dict[str, Any] = {
    "missing": lambda saved, path: None,
    "empty": lambda saved, path: path.touch(),
    "truncated": _truncated,
    "first half": lambda saved, path: path.write_bytes(saved.read_bytes()[: saved.stat().st_size // 2]),
    "text": lambda saved, path: path.write_text("these are not weights\n" * 50),
    "a folder": lambda saved, path: path.mkdir(),
    "an image": lambda saved, path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200)),
    "a list": lambda saved, path: torch.save([1, 2], path),
    "a bare state dict": lambda saved, path: torch.save({"conv1.weight": torch.zeros(3)}, path),
}


@pytest.mark.parametrize("what", _HOSTILE)
def test_what_is_no_network_of_this_project_is_named_in_one_line(saved: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / "w.pt"
    _HOSTILE[what](saved, path)
    with pytest.raises(InputError) as caught:
        load_trained(path)
    assert caught.value.key == str(path)
    assert len(str(caught.value)) < 300 + len(str(path))
    assert "delete" not in str(caught.value), "it may be anything"


def test_refusals(saved: Path, tmp_path: Path) -> None:
    def load(what: str) -> None:
        path = tmp_path / f"{what}.pt"
        _HOSTILE[what](saved, path)
        load_trained(path)

    # Their lines end in torch's own words.
    cases = {what: partial(load, what) for what in _HOSTILE if what not in ("truncated", "first half")}
    check_golden("refused_weights.txt", refusals(cases, hidden={str(tmp_path): "FOLDER"}))


@pytest.mark.parametrize(
    "change",
    [
        {"network": "resnet34"},
        {"network": "vgg16"},
        {"network": 3},
        {"stem": "cifar"},
        {"class_names": ["a"]},
        {"class_names": None},
        {"class_names": 3},
        {"format": {}},
        {"format": {"image_size": 16}},
        {"format": None},
        {"resizing": "stretch"},
        {"resizing": ["square"]},
        {"state_dict": {}},
        {"state_dict": None},
        {"state_dict": {"backbone.conv1.weight": torch.zeros(3)}},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_the_weights_are_refused(saved: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "w.pt"
    torch.save({**torch.load(saved, weights_only=True), **change}, path)
    with pytest.raises(InputError) as caught:
        load_trained(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("key", ["network", "stem", "class_names", "format", "state_dict"])
def test_a_missing_setting_is_refused(saved: Path, tmp_path: Path, key: str) -> None:
    path = tmp_path / "w.pt"
    content = torch.load(saved, weights_only=True)
    del content[key]
    torch.save(content, path)
    with pytest.raises(InputError) as raised:
        load_trained(path)
    assert raised.value.key == str(path)


@settings(max_examples=60, deadline=None)
@given(
    start=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", b"\x80\x04\x95", b"(", b"{"]), rest=st.binary(max_size=200)
)
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, start: bytes, rest: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pt"
    path.write_bytes(start + rest)
    with pytest.raises(InputError):
        load_trained(path)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, tiny_file: bytes, data: st.DataObject
) -> None:
    """Bytes changed anywhere in a sound file."""
    content = bytearray(tiny_file)
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.pt"
    path.write_bytes(content)
    try:
        state = extract_state_dict(load_torch_file(path), path)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "w.pt"
    torch.save({"state_dict": {"a": torch.arange(3.0)}, "names": ["x"]}, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three networks of an extractor; seven training images."""
    path = tmp_path_factory.mktemp("folded") / "small_cnn.pt"
    models = [build_network("small_cnn", len(NAMES), stem="imagenet", seed=seed) for seed in range(3)]
    settings = replace(TINY, network="small_cnn")
    save_fold_networks(path, models, np.array([0, 1, 2, 2, 1, 0, 1], np.int32), settings, NAMES)
    return path


def test_all_networks_of_an_extractor_are_in_one_file(folded: Path) -> None:
    loaded = load_fold_networks(folded)
    images, _ = bright_images(5)
    for seed, network in enumerate(loaded.networks):
        model = build_network("small_cnn", len(NAMES), stem="imagenet", seed=seed).eval()
        normalized = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.44) / 0.27
        with torch.inference_mode():
            expected = model(normalized).softmax(1)
        np.testing.assert_allclose(network.predict_proba(images), expected, atol=FLOAT32_ROUNDING)
    assert loaded.folds is not None
    assert loaded.folds.tolist() == [0, 1, 2, 2, 1, 0, 1]
    assert loaded.folds.dtype == np.int32
    np.testing.assert_array_equal(load_trained(folded).predict_proba(images), loaded.networks[0].predict_proba(images))


def test_a_single_network_has_no_folds(saved: Path) -> None:
    loaded = load_fold_networks(saved)
    assert (len(loaded.networks), loaded.folds) == (1, None)


@pytest.mark.parametrize(
    "change",
    [
        {"folds": None},
        {"folds": torch.tensor([0, 1, 2])},
        {"folds": torch.tensor([0, 1, 1], dtype=torch.int32)},
        {"folds": torch.tensor([0, 1, 2, 3], dtype=torch.int32)},
        {"folds": torch.tensor([[0, 1, 2]], dtype=torch.int32)},
        {"other_state_dicts": []},
        {"other_state_dicts": [{}, {}]},
        {"other_state_dicts": [None, None]},
        {"other_state_dicts": 3},
    ],
    ids=str,
)
def test_folds_that_do_not_fit_the_networks_are_refused(folded: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "w.pt"
    torch.save({**torch.load(folded, weights_only=True), **change}, path)
    with pytest.raises(InputError) as raised:
        load_fold_networks(path)
    assert raised.value.key == str(path)


@pytest.mark.parametrize(
    "content", [[], {}, {"a": 1}, {"state_dict": {}}, {"state_dict": [torch.zeros(1)]}, torch.zeros(2)]
)
def test_a_file_without_a_state_dict_is_refused(content: object) -> None:
    with pytest.raises(InputError) as raised:
        extract_state_dict(content, Path("x.pt"))
    assert raised.value.key == "x.pt"


@pytest.mark.parametrize("path", ["/", "/dev/zero", "/proc/self/mem", "/etc/passwd"])
def test_no_file_of_the_system_is_read_or_said_to_be_deleted(path: str) -> None:
    with pytest.raises(InputError) as refused:
        load_torch_file(Path(path))
    assert refused.value.key == path
    assert "delete" not in str(refused.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights.pt")
    with pytest.raises(InputError, match="not a regular file"):
        load_torch_file(tmp_path / "weights.pt")
