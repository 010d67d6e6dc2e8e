"""`prepare.train_size` keeps a fraction of each class and all test images, and reads no other file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.artifacts.files import read_json
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.splits import subset_mask
from pipeline.paths import DataPaths
from tests.fixtures.images import run_prepare, split_tree, write_folder
from tests.fixtures.printed_errors import key_within, printed_error


def _paths(data: DataPaths, split: str) -> list[str]:
    paths: list[str] = read_parquet(data.manifest(split))["path"].to_pylist()
    return paths


def _prepare(folder: Path, images: Path, **config: Any) -> DataPaths:
    folder.mkdir()
    return run_prepare(folder, images, **config)


def test_a_fraction_of_each_class_keeps_its_pixels(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", split_tree(n_train=10, n_test=2))
    everything, some = _prepare(tmp_path / "all", images), _prepare(tmp_path / "some", images, train_size=0.4)
    kept = _paths(some, "train")
    assert [name.split("/")[1] for name in kept] == ["cat"] * 4 + ["dog"] * 4
    rows = [_paths(everything, "train").index(path) for path in kept]
    np.testing.assert_array_equal(np.load(some.images("train")), np.load(everything.images("train"))[rows])
    assert _paths(some, "test") == _paths(everything, "test")
    assert read_json(some.prepare_metrics)["n_train"] == 8


def test_images_outside_the_fraction_may_be_unreadable(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", split_tree(n_train=10, n_test=2))
    kept = _paths(_prepare(tmp_path / "first", images, train_size=0.4), "train")
    others = sorted({str(path.relative_to(images)) for path in images.glob("train/cat/*")} - set(kept))
    (images / others[0]).write_bytes(b"no picture")
    file = tmp_path / "labels.csv"
    file.write_text(f"path,label\n{others[1]},dog\n{kept[0]},dog\n")
    again = _prepare(tmp_path / "again", images, train_size=0.4, label_file=str(file))
    assert _paths(again, "train") == kept
    assert read_json(again.prepare_metrics)["n_relabelled"] == 1


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    shares=st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)),
    seed=st.integers(0, 99),
)
def test_smaller_fractions_are_subsets(labels: list[int], shares: tuple[float, float], seed: int) -> None:
    names = [f"{row}.png" for row in range(len(labels))]
    less, more = (subset_mask(names, labels, share, seed=seed) for share in sorted(shares))
    assert (less <= more).all()
    for label in set(labels):
        assert less[np.array(labels) == label].sum() >= min(2, labels.count(label))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_fraction_outside_0_to_1_is_refused(tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_prepare(tmp_path, write_folder(tmp_path / "images", split_tree()), train_size=share)
    assert ended.value.code == 2
    error = printed_error(capsys.readouterr().err)
    assert key_within(error, tmp_path / "params.yaml") == "prepare.train_size"
