"""`batchsieve export`: what other tools read is what the filter decided."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from ruamel.yaml import YAML

from batchsieve.cli import main
from pipeline import locks
from pipeline.artifacts.files import read_json, write_bytes, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands.init.proposal import default_test_size, survey_folder
from pipeline.locks import file_lock
from pipeline.paths import DataPaths
from pipeline.run_log import RunLog
from tests.fixtures.damages import damage
from tests.fixtures.exporting import KEEP, export, project_options, write_decided_project
from tests.fixtures.images import one_tree, run_prepare
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.progress import progress_of, show_every_update
from tests.fixtures.projects import NETWORK
from tests.fixtures.records import record
from tests.fixtures.report import params_tree, params_with, write_artifacts

_CAT, _DOG = 0, 1


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_decided_project(tmp_path)


def _shard(path: Path) -> pa.Table:
    return pyarrow.parquet.read_table(path / "data/train-00000-of-00001.parquet", partitioning=None)


def test_shards_have_unchanged_files_and_the_decided_labels(project: Path) -> None:
    out = export(project)
    kept, dropped = _shard(out / "kept"), _shard(out / "dropped")
    for table in (kept, dropped):
        for image in table["image"].to_pylist():
            assert image["bytes"] == (project / "photos" / image["path"]).read_bytes()
    assert (len(kept), len(dropped)) == (6, 2)
    assert kept["label"].to_pylist()[0] == _DOG
    assert kept["image"].to_pylist()[0]["path"].startswith("train/cat/")
    assert dropped["suggested_label"].to_pylist() == ["dog", "cat"]
    assert dropped["label"].to_pylist() == [_CAT, _DOG]


def test_many_images_are_divided_into_shards(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _shard(export(project) / "kept")
    sizes = [len(image["bytes"]) for image in whole["image"].to_pylist()]
    # Six images in files of a bit more than two.
    monkeypatch.setattr("pipeline.commands.export.decisions._SHARD_BYTES", 2.1 * sum(sizes) / len(sizes))
    out = export(project, "--force")
    shards = sorted((out / "kept/data").glob("train-*"))
    assert [path.name for path in shards] == [f"train-0000{number}-of-00003.parquet" for number in range(3)]
    tables = [pyarrow.parquet.read_table(path, partitioning=None) for path in shards]
    assert [len(table) for table in tables] == [2, 2, 2]
    assert pa.concat_tables(tables).equals(whole)
    (project / "again").mkdir()
    assert len(np.load(run_prepare(project / "again", out / "kept").images("train"))) == 6


def test_the_kept_data_set_is_read_back_by_prepare(project: Path) -> None:
    out = export(project)
    (project / "again").mkdir()
    again = run_prepare(project / "again", out / "kept")
    before = DataPaths(root=project / "data")
    assert read_json(again.prepare_metrics)["class_names"] == ["cat", "dog"]
    kept = np.load(before.images("train"))[KEEP]
    order = np.argsort(read_parquet(before.manifest("train"))["sha256"].filter(pa.array(KEEP)).to_pylist())
    order_again = np.argsort(read_parquet(again.manifest("train"))["sha256"].to_pylist())
    assert (np.load(again.images("train"))[order_again] == kept[order]).all()
    assert len(np.load(again.images("test"))) == 4


def test_metadata_csv_puts_the_labels_of_the_folder_right(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = export(project)
    assert f"cp -r {out}/metadata/. {project}/photos/\n" in capsys.readouterr().out
    shutil.copytree(out / "metadata", project / "photos", dirs_exist_ok=True)
    survey = survey_folder(project / "photos", choose_test_size=default_test_size, progress=RunLog.silent().progress)
    assert survey.class_names == ("cat", "dog")
    assert (survey.train, survey.test, survey.test_size) == ((3, 5), (2, 2), None)
    tables = {split: pyarrow.csv.read_csv(out / "metadata" / split / "metadata.csv") for split in ("train", "test")}
    assert tables["train"]["keep"].to_pylist() == KEEP.tolist()
    assert tables["test"]["keep"].to_pylist() == [True] * 4
    assert tables["train"].schema == tables["test"].schema


def test_images_without_folders_of_splits_share_a_table(tmp_path: Path) -> None:
    project = write_decided_project(tmp_path, one_tree(), test_size=0.34)
    out = export(project)
    shutil.copytree(out / "metadata", project / "photos", dirs_exist_ok=True)
    assert [path.parent for path in (project / "photos").rglob("metadata.csv")] == [project / "photos"]
    survey = survey_folder(project / "photos", choose_test_size=default_test_size, progress=RunLog.silent().progress)
    assert survey.class_names == ("cat", "dog")
    table = pyarrow.csv.read_csv(out / "metadata/metadata.csv")
    changed = [row for row in table.to_pylist() if Path(row["file_name"]).parent.name != row["label"]]
    assert [(row["label"], row["keep"]) for row in changed] == [("dog", True)]


def test_a_table_that_would_be_overwritten_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions = {"metadata.csv": b"file_name,caption\ncat/0.png,asleep\n"}
    project = write_decided_project(tmp_path, one_tree() | captions, test_size=0.34)
    export(project)
    assert f"it overwrites {project}/photos/metadata.csv," in capsys.readouterr().out
    (project / "photos/metadata.csv").unlink()
    export(project, "--force")
    assert "overwrites" not in capsys.readouterr().out


def test_tables_of_an_earlier_export_are_removed(project: Path) -> None:
    """`cp -r` would put them into the folder of the images."""
    out = export(project)
    tables = out / "metadata"
    (tables / "train").rename(tables / "valid")
    mine = tables / "mine/metadata.csv"
    mine.parent.mkdir()
    mine.write_text("file_name,label\nold.png,cat\n")
    export(project, "--force")
    assert sorted(path.parent.name for path in tables.rglob("metadata.csv")) == ["mine", "test", "train"]


def test_indices_are_the_rows_of_the_training_images(project: Path) -> None:
    out = export(project)
    assert np.load(out / "kept.npy").tolist() == np.flatnonzero(KEEP).tolist()
    assert np.load(out / "dropped.npy").dtype == np.int64
    assert (out / "dropped.txt").read_text() == "2\n5\n"


def test_columns_are_those_of_cleanlab(project: Path) -> None:
    table = pyarrow.csv.read_csv(export(project) / "label_issues.csv")
    assert table.column_names[2:] == ["is_label_issue", "label_score", "given_label", "predicted_label"]
    assert table["is_label_issue"].to_pylist() == (~KEEP).tolist()
    assert table["label_score"].to_pylist() == np.where(KEEP, 0.75, 0.25).tolist()


def test_label_issues_run_no_formula_and_metadata_is_unchanged(tmp_path: Path) -> None:
    project = write_decided_project(tmp_path, one_tree(["=cat", "dog"]), test_size=0.34)
    out = export(project)
    issues = pyarrow.csv.read_csv(out / "label_issues.csv")
    for name in ("given_label", "predicted_label"):
        assert set(issues[name].to_pylist()) == {"'=cat", "dog"}
    assert {path.partition("/")[0] for path in issues["path"].to_pylist()} == {"'=cat", "dog"}
    metadata = pyarrow.csv.read_csv(out / "metadata/metadata.csv")
    assert set(metadata["label"].to_pylist()) == {"=cat", "dog"}
    assert all((project / "photos" / name).is_file() for name in metadata["file_name"].to_pylist())


def test_a_folder_is_not_overwritten(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = export(project)
    (out / "kept.txt").write_text("mine")
    capsys.readouterr()
    assert main(["export", str(out), *project_options(project)]) == 2
    assert printed_error(capsys.readouterr().err).key == str(out)
    assert (out / "kept.txt").read_text() == "mine"
    export(project, "--force")
    assert (out / "kept.txt").read_text() != "mine"


def test_a_network_of_an_earlier_export_is_named_and_left(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = export(project)
    assert "earlier export" not in capsys.readouterr().out
    left = out / "networks" / "removed_study"
    left.mkdir(parents=True)
    export(project, "--force")
    assert f"{left}: left by an earlier export, and no study has this name" in capsys.readouterr().out
    assert left.exists()


def test_one_export_at_a_time_writes_to_a_folder(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_LOCK_GRACE_S", 0.1)
    out = project / "out"
    for more in ([], ["--force"]):
        with file_lock(out / ".export.lock", "an export", remove=True):
            assert main(["export", str(out), *project_options(project), *more]) == 2
        error = printed_error(capsys.readouterr().err)
        assert error.key == f"export {out}"
        assert f" {os.getpid()};" in str(error)
        assert list(out.iterdir()) == []
    # The lock of one that was killed at its start is no content.
    (out / ".export.lock").touch()
    export(project)
    assert not (out / ".export.lock").exists()


def test_what_a_killed_export_left_is_removed(project: Path) -> None:
    out = export(project)
    no_process = "9" * 9
    left = [out / f".kept.npy.{no_process}.tmp", out / f"kept/data/.test-00000-of-00001.parquet.{no_process}.tmp"]
    for path in left:
        path.touch()
    export(project, "--force")
    assert [path for path in left if path.exists()] == []


def test_changed_images_are_named_and_planted_labels_stated(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DataPaths(root=project / "data")
    write_json(data.prepare_metrics, {**read_json(data.prepare_metrics), "n_planted": 3})
    record(data, "prepare")
    out = export(project)
    assert "labels changed on purpose: 3" in capsys.readouterr().out
    for table in (_shard(out / "kept"), pyarrow.csv.read_csv(out / "label_issues.csv")):
        assert set(table["labels_changed_on_purpose"].to_pylist()) == {3}
    changed = next((project / "photos/train/cat").iterdir())
    changed.write_bytes(b"other")
    assert main(["export", str(out), *project_options(project), "--force"]) == 2
    assert printed_error(capsys.readouterr().err).key == str(changed)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("filter/resnet18/points.parquet", "filter --network resnet18"),
        ("filter/resnet18/provenance.json", "filter --network resnet18"),
        ("prepare/train.parquet", "prepare"),
        ("prepare/test.parquet", "prepare"),
        ("prepare/metrics.json", "prepare"),
        ("prepare/provenance.json", "prepare"),
        ("train/digits.parquet", "train --study digits"),
        ("train/digits/best.pt", "train --study digits"),
        ("train/digits.provenance.json", "train --study digits"),
    ],
)
def test_a_damaged_file_is_named_with_the_command_that_writes_it(
    name: str, stage: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = DataPaths(root=project / "data"), project / "out"
    write_parquet(data.runs("digits"), pa.table({"top1": [0.5, 0.75]}))
    write_bytes(data.trained_weights("digits"), b"weights")
    record(data, "train", "digits")
    whole = (data.root / name).read_bytes()
    for kind in ("bit in the middle", "a value changed", "a row less", "empty"):
        if damage(data.root / name, kind):
            assert main(["export", str(out), *project_options(project)]) == 2, kind
            error = printed_error(capsys.readouterr().err)
            assert error.key == str(data.root / name)
            assert f"`python -m pipeline.stages.{stage}`" in str(error)
            assert not out.exists()
        (data.root / name).write_bytes(whole)


def test_prepared_images_are_checked_where_they_are_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Images of an archive have no files, so that those of `prepare` are written."""
    data = DataPaths(root=tmp_path / "data")
    write_artifacts(data, params_with([NETWORK]))
    YAML().dump(params_tree([NETWORK]), tmp_path / "params.yaml")
    assert damage(data.images("test"), "a value changed")
    assert main(["export", str(tmp_path / "out"), *project_options(tmp_path)]) == 2
    assert printed_error(capsys.readouterr().err).key == str(data.images("test"))


def test_a_filter_without_a_record_is_noted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DataPaths(root=project / "data").provenance("filter", NETWORK).unlink()
    export(project)
    assert f"filter@{NETWORK}:" in capsys.readouterr().err


def test_the_images_of_every_shard_count(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_every_update(monkeypatch)
    monkeypatch.setattr("pipeline.commands.export.decisions._ROWS", 4)
    export(project)
    shown = progress_of(capsys.readouterr().err)
    # Six kept images, four test images and two dropped ones, at most four at a time.
    assert shown == {"export": [(done, 12, "images") for done in (4, 6, 10, 12)]}
