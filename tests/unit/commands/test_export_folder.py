"""`batchsieve export`: its tables are for the folder of the images, unless `prepare` would refuse it with them."""

import shutil
from pathlib import Path

import pyarrow.csv
import pytest

from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from tests.fixtures.exporting import export, write_decided_project
from tests.fixtures.images import one_tree, photo, run_prepare, split_tree
from tests.fixtures.records import record


def _prepared_again(project: Path, **config: object) -> list[str]:
    """Copy the tables into the folder, and return the training images that `prepare` then finds."""
    shutil.copytree(project / "out/metadata", project / "photos", dirs_exist_ok=True)
    (project / "again").mkdir()
    again = run_prepare(project / "again", project / "photos", **config)
    paths: list[str] = read_parquet(again.manifest("train"))["path"].to_pylist()
    return paths


def test_unreadable_images_are_in_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = split_tree() | {"train/cat/broken.jpg": b"no image"}
    project = write_decided_project(tmp_path, files, unreadable="skip")
    export(project)
    assert "cp -r " in capsys.readouterr().out
    assert pyarrow.csv.read_csv(project / "out/metadata/train/metadata.csv").to_pylist()[-1] == {
        "file_name": "cat/broken.jpg", "label": "cat", "keep": True,
    }  # fmt: skip
    prepared = read_parquet(DataPaths(root=project / "data").manifest("train"))["path"].to_pylist()
    assert _prepared_again(project, unreadable="skip") == prepared


def test_images_of_the_other_shares_are_in_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = write_decided_project(tmp_path, split_tree(n_train=8), train_size=0.5)
    export(project)
    assert "cp -r " in capsys.readouterr().out
    assert len(_prepared_again(project)) == 16


def test_a_folder_that_would_be_refused_is_not_copied_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unlabeled images of ImageNet lie in test/, a train is also a vehicle, and labels may be in another table."""
    imagenet = {name.replace("test/", "val/"): content for name, content in split_tree().items()}
    lines = "".join(f'{{"file_name": "{name}", "label": "{name.split("/")[1]}"}}\n' for name in split_tree())
    cases = {
        "in no metadata.csv": (imagenet | {"test/0001.JPEG": photo(99)}, None),
        "belongs to no split": (one_tree(["bus", "train"]), 0.34),
        "keep those of one kind": (split_tree() | {"metadata.jsonl": lines.encode()}, None),
    }
    for number, (reason, (files, test_size)) in enumerate(cases.items()):
        project = write_decided_project(tmp_path / str(number), files, test_size=test_size)
        capsys.readouterr()
        out = export(project)
        printed = capsys.readouterr().out
        assert "cp -r " not in printed
        assert f"do not copy {out}/metadata into {project}/photos" in printed
        assert reason in printed


def test_planted_labels_are_not_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = write_decided_project(tmp_path)
    data = DataPaths(root=project / "data")
    write_json(data.prepare_metrics, {**read_json(data.prepare_metrics), "n_planted": 3})
    record(data, "prepare")
    export(project)
    printed = capsys.readouterr().out
    assert "cp -r " not in printed
    assert "its labels were changed on purpose" in printed


def test_a_table_below_the_path_is_copied_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = write_decided_project(tmp_path, {f"all/{name}": content for name, content in split_tree().items()})
    out = export(project)
    assert f"cp -r {out}/metadata/. {project}/photos/all/\n" in capsys.readouterr().out
