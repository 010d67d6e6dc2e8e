"""A trained network predicts paths, PIL images and arrays of any size, resized as the training did."""

import doctest
import importlib
import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.datasets.augmentation import center_box
from pipeline.datasets.decode import decode_image, decode_region
from pipeline.errors import InputError
from pipeline.models import build_network
from pipeline.training.weights import TrainedNetwork, load_trained, save_trained
from tests.fixtures.images import encode, photo, write_folder
from tests.fixtures.training import FLOAT32_ROUNDING, NAMES, SIZE, TINY

_SETTINGS = replace(TINY, network="small_cnn")
_WHOLE = encode(Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)))
_HALF = _WHOLE[: len(_WHOLE) // 2]
_SIZES = [(40, 30), (SIZE, SIZE), (9, 33)]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> TrainedNetwork:
    path = tmp_path_factory.mktemp("weights") / "best.pt"
    save_trained(path, build_network("small_cnn", len(NAMES), stem="imagenet", seed=0), _SETTINGS, NAMES)
    return load_trained(path)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    contents = {f"{i}.png": photo(i, size, "PNG") for i, size in enumerate(_SIZES)}
    return sorted(write_folder(folder, contents).glob("*.png"))


def test_paths_images_and_arrays_are_predicted_alike(network: TrainedNetwork, files: list[Path]) -> None:
    prepared = np.stack([decode_image(path.read_bytes(), SIZE, max_megapixels=1) for path in files])
    expected = network.predict_proba(prepared)
    np.testing.assert_allclose(expected.sum(axis=1), 1, rtol=len(NAMES) * 2.0**-23)
    pictures = [Image.open(path) for path in files]
    for given in (files, [str(path) for path in files], pictures, [np.asarray(one) for one in pictures]):
        np.testing.assert_array_equal(network.predict_proba(given), expected)
    np.testing.assert_allclose(network.predict_proba(files, batch_size=2), expected, atol=FLOAT32_ROUNDING)
    assert network.predict(files) == [NAMES[label] for label in expected.argmax(1)]
    pixels = np.asarray(pictures[0])
    for alone in (files[0], str(files[0]), pictures[0], pixels, pixels[np.newaxis]):
        np.testing.assert_allclose(network.predict_proba(alone), expected[:1], atol=FLOAT32_ROUNDING)


def test_orientation_and_transparency_are_those_of_the_decoder(network: TrainedNetwork, tmp_path: Path) -> None:
    turned, clear = tmp_path / "turned.jpg", tmp_path / "clear.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(io.BytesIO(photo(3, (40, 20), "PNG"))) as picture:
        picture.save(turned, exif=exif)
        picture.putalpha(90)
        picture.save(clear)
    expected = [decode_image(path.read_bytes(), SIZE, max_megapixels=1) for path in (turned, clear)]
    given = network.predict_proba([Image.open(turned), Image.open(clear)])
    np.testing.assert_array_equal(given, network.predict_proba(np.stack(expected)))


def test_a_network_trained_from_files_takes_the_center_crop(tmp_path: Path, files: list[Path]) -> None:
    path = tmp_path / "best.pt"
    model = build_network("small_cnn", len(NAMES), stem="imagenet", seed=0)
    save_trained(path, model, _SETTINGS, NAMES, resizing="center_crop")
    region = partial(center_box, crop_size=SIZE)
    crops = np.stack([decode_region(file.read_bytes(), SIZE, region, max_megapixels=1) for file in files])
    save_trained(tmp_path / "square.pt", model, _SETTINGS, NAMES)
    expected = load_trained(tmp_path / "square.pt").predict_proba(crops)
    np.testing.assert_array_equal(load_trained(path).predict_proba(files), expected)


_BAD: dict[str, tuple[Any, str]] = {
    "float pixels": (np.zeros((2, SIZE, SIZE, 3), np.float32), "images"),
    "gray pixels": (np.zeros((2, SIZE, SIZE), np.uint8), "images"),
    "no pixels": ([np.zeros((0, 4, 3), np.uint8)], "images"),
    "a number": (3, "images"),
    "a list of numbers": ([1, 2], "images"),
    "one float array": ([np.zeros((4, 4, 3))], "images"),
    "floating-point PIL image": ([Image.new("F", (4, 4))], "images"),
    "a missing file": ("missing.png", "missing.png"),
    "a folder": (".", "."),
    "text": ("text.png", "text.png"),
    "half a picture": ("half.png", "half.png"),
}


@pytest.mark.parametrize("what", _BAD)
def test_bad_images_are_named_in_one_line(
    what: str, network: TrainedNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.png").write_text("no picture")
    Path("half.png").write_bytes(_HALF)
    given, key = _BAD[what]
    with pytest.raises(InputError) as raised:
        network.predict(given)
    assert raised.value.key == key


def test_a_picture_whose_file_ends_early_is_named_by_its_position(network: TrainedNetwork) -> None:
    half = Image.open(io.BytesIO(_HALF))
    with pytest.raises(InputError) as raised:
        network.predict([Image.new("RGB", (5, 5)), half])
    assert str(raised.value).startswith("images: number 1: ")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data/train/digits/best.pt"
    path.parent.mkdir(parents=True)
    settings = replace(TINY, network="resnet18", n_classes=10)
    save_trained(path, build_network("resnet18", 10, stem="imagenet", seed=0), settings, list("0123456789"))
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module("pipeline.training.weights"))
    assert (found.attempted > 0, found.failed) == (True, 0)
