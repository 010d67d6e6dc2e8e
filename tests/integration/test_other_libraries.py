"""Folders that the library `datasets` wrote are read, and it and cleanlab read what `export` writes."""

import gc
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import DecodedImage, ImageSet
from pipeline.errors import InputError
from tests.fixtures.exporting import KEEP, export, write_decided_project
from tests.fixtures.images import dataset_options, photo, write_folder

_NAMES = ("dog", "cat")  # not in alphabetical order

# Of files that it leaves open.
_LIBRARY_WARNS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The library, with a cache of its own and without a network."""
    library = pytest.importorskip("datasets", reason="needs the library: pip install -e '.[datasets]'")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", True)
    library.disable_progress_bars()
    yield library
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _data_set(datasets: Any, seeds: range) -> Any:
    """Return images in memory whose labels alternate."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(_NAMES))})
    images = [{"bytes": photo(seed), "path": f"{seed}.png"} for seed in seeds]
    return datasets.Dataset.from_dict({"image": images, "label": [seed % 2 for seed in seeds]}, features=features)


def _label_of_pixels(images: ImageSet, split: str) -> dict[bytes, str]:
    labels = {sample.path: images.class_names[sample.label] for sample in images.samples(split)}
    return {
        image.pixels.tobytes(): labels[image.path]
        for image in images.decode()
        if isinstance(image, DecodedImage) and image.path in labels
    }


def _expected(seeds: range, tmp_path: Path) -> dict[bytes, str]:
    """Return what `_label_of_pixels` returns of `_data_set`, read from class folders."""
    files = {f"{_NAMES[seed % 2]}/{seed}.png": photo(seed) for seed in seeds}
    folder = write_folder(tmp_path / f"expected{seeds}", files)
    images = open_image_folder(dataset_options(folder, test_size=0.5))
    return {**_label_of_pixels(images, "train"), **_label_of_pixels(images, "test")}


def test_parquet_files_are_read(datasets: Any, tmp_path: Path) -> None:
    splits = {"train": range(8), "test": range(8, 12)}
    for split, seeds in splits.items():
        _data_set(datasets, seeds).to_parquet(str(tmp_path / f"{split}.parquet"))
    images = open_image_folder(dataset_options(tmp_path))
    assert images.class_names == _NAMES
    for split, seeds in splits.items():
        assert _label_of_pixels(images, split) == _expected(seeds, tmp_path)


def test_what_save_to_disk_wrote_is_read_as_the_error_says(datasets: Any, tmp_path: Path) -> None:
    splits = {"train": range(8), "test": range(8, 12)}
    saved = datasets.DatasetDict({split: _data_set(datasets, seeds) for split, seeds in splits.items()})
    saved.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(InputError, match=r"test/data-00000-of-00001\.arrow .*load_from_disk.*to_parquet") as refused:
        open_image_folder(dataset_options(tmp_path / "saved"))
    assert "\n" not in str(refused.value)
    (tmp_path / "written").mkdir()
    for split, part in datasets.load_from_disk(str(tmp_path / "saved")).items():
        part.to_parquet(str(tmp_path / "written" / f"{split}.parquet"))
    images = open_image_folder(dataset_options(tmp_path / "written"))
    assert images.class_names == _NAMES
    for split, seeds in splits.items():
        assert _label_of_pixels(images, split) == _expected(seeds, tmp_path)


@_LIBRARY_WARNS
@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_an_image_folder_has_the_labels_that_the_library_reads(name: str, datasets: Any, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for split, seeds in (("train", range(8)), ("test", range(8, 12))):
        write_folder(folder / split, {f"{seed}.png": photo(seed) for seed in seeds})
        rows = {"file_name": [f"{seed}.png" for seed in seeds], "label": [_NAMES[seed % 2] for seed in seeds]}
        table = datasets.Dataset.from_dict({**rows, "width": [12] * len(seeds)})
        (table.to_csv if name.endswith("csv") else table.to_json)(str(folder / split / name))
    images = open_image_folder(dataset_options(folder))
    loaded = datasets.load_dataset("imagefolder", data_dir=str(folder))
    for split, seeds in (("train", range(8)), ("test", range(8, 12))):
        ours = {sample.path: images.class_names[sample.label] for sample in images.samples(split)}
        theirs = loaded[split].cast_column("image", datasets.Image(decode=False))
        assert ours == {
            str(Path(image["path"]).relative_to(folder)): label
            for image, label in zip(theirs["image"], theirs["label"], strict=True)
        }
        assert _label_of_pixels(images, split) == _expected(seeds, tmp_path)


def _files(part: Any, datasets: Any) -> Mapping[bytes, str]:
    """Return the class of each image file of a split that the library loaded."""
    names = part.features["label"].names
    rows = part.cast_column("image", datasets.Image(decode=False))
    return {image["bytes"]: names[label] for image, label in zip(rows["image"], rows["label"], strict=True)}


def test_the_library_loads_kept_and_dropped(datasets: Any, tmp_path: Path) -> None:
    project = write_decided_project(tmp_path)
    out = export(project)
    photos = {path: path.read_bytes() for path in (project / "photos").rglob("*.png")}
    given = {content: path.parent.name for path, content in photos.items() if "train" in path.parts}
    kept, dropped = (datasets.load_dataset(str(out / name)) for name in ("kept", "dropped"))
    assert (sorted(kept), sorted(dropped)) == (["test", "train"], ["train"])
    found = {**_files(kept["train"], datasets), **_files(dropped["train"], datasets)}
    assert found.keys() == given.keys()
    changed = [content for content, label in found.items() if given[content] != label]
    assert changed == [photos[project / "photos/train/cat/0.png"]]
    assert _files(kept["test"], datasets) == {
        content: path.parent.name for path, content in photos.items() if "test" in path.parts
    }
    assert isinstance(kept["train"][0]["image"], Image.Image)
    assert (len(kept["train"]), dropped["train"]["suggested_label"][:]) == (int(KEEP.sum()), ["dog", "cat"])


@_LIBRARY_WARNS
def test_metadata_csv_replaces_the_labels_for_the_library(datasets: Any, tmp_path: Path) -> None:
    project = write_decided_project(tmp_path)
    shutil.copytree(export(project) / "metadata", project / "photos", dirs_exist_ok=True)
    loaded = datasets.load_dataset("imagefolder", data_dir=str(project / "photos"))
    rows = loaded["train"].cast_column("image", datasets.Image(decode=False))
    labels = {
        Path(image["path"]).relative_to(project / "photos/train"): label
        for image, label in zip(rows["image"], rows["label"], strict=True)
    }
    assert len(labels) == len(KEEP)
    assert {path: label for path, label in labels.items() if path.parent.name != label} == {Path("cat/0.png"): "dog"}


@pytest.mark.subprocess
def test_cleanlab_has_the_columns_and_trains_on_the_rest(datasets: Any, tmp_path: Path) -> None:
    cleanlab = pytest.importorskip("cleanlab", reason="needs the library: pip install -e '.[cleanlab]'")
    issues = pyarrow.csv.read_csv(export(write_decided_project(tmp_path)) / "label_issues.csv").to_pandas()
    given = issues["given_label"].to_numpy()
    codes = (given == "dog").astype(int)
    probabilities = np.where(codes[:, None] == np.arange(2), 0.8, 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cleanlab's own
        lab = cleanlab.Datalab({"label": given}, label_name="label", verbosity=0)
        lab.find_issues(pred_probs=probabilities, issue_types={"label": {}})
    theirs = lab.get_issues("label")
    assert [*theirs.columns] == [*issues.columns[2:]]
    assert [*theirs.dtypes] == [*issues.dtypes[2:]]
    learned = cleanlab.classification.CleanLearning(LogisticRegression())
    features = np.arange(16.0).reshape(8, 2)
    learned.fit(features, codes, label_issues=issues[["is_label_issue"]])
    alone = LogisticRegression().fit(features[KEEP], codes[KEEP])
    np.testing.assert_array_equal(learned.clf.coef_, alone.coef_)
