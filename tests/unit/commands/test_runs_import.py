"""Runs that torchrun trained on another node are used by the next `dvc repro` here."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from benchmarks.unpacking import unpack
from pipeline import locks
from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.plans import read_registered_plans, read_run_dates
from pipeline.artifacts.tables import read_parquet
from pipeline.locks import file_lock
from pipeline.paths import WorkPaths
from pipeline.runs.record import write_checksums
from pipeline.training import code_families
from pipeline.training.code_families import Family
from pipeline.training.run_key import RunKey, machine_info, training_code_digest
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.training import command, run, stage, write_project
from tests.fixtures.verified import STUDY_NAME, folders, train, write_verified_project

_STUDY = {"models": ["small_cnn"], "arms": ["full"], "seeds": [0], "batch_sizes": [20]}

# Each test needs the runs of a trained study.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose study two processes of a plain torchrun have trained."""
    folder = tmp_path_factory.mktemp("node")
    write_project(folder, study=_STUDY, train={"simulated_workers": 2})
    done = run(command("train", folder, ranks=2))
    assert done.returncode == 0, done.stderr
    return folder


def _importing(theirs: Path, project: Path) -> list[str]:
    folders = ["--work", str(project / "work"), "--params", str(project / "params.yaml")]
    return ["runs", "import", str(theirs), *folders, "--data", str(project / "data")]


def _import(theirs: Path, project: Path) -> int:
    """For the study of `node`, if `project` has no parameters."""
    if not (project / "params.yaml").exists():
        write_project(project, study=_STUDY, train={"simulated_workers": 2})
    return main(_importing(theirs, project))


def _entry(work: Path) -> Path:
    (entry,) = (work / "cells").glob("[0-9a-f]*")
    return entry


def _pretend_other_machine(work: Path) -> dict[str, str]:
    """Rename an entry as if a GPU had trained it."""
    entry = _entry(work)
    key = read_json(entry / "identity.json")
    key["machine"]["device"] = "a GPU of another node"
    write_json(entry / "identity.json", key)
    write_checksums(entry)
    entry.rename(entry.with_name(RunKey(**key).fingerprint))
    return dict(key["machine"])


def _counts(stdout: str) -> list[int]:
    """Return the numbers that the command prints: all runs, imported runs, runs known already."""
    (line,) = [line for line in stdout.splitlines() if " imported, " in line]
    return [int(number) for number in re.findall(r"\b(\d+) [a-z]+", line.rpartition(": ")[2])]


def test_imported_runs_are_not_trained_again(tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_project(tmp_path, study=_STUDY, train={"simulated_workers": 2})
    shutil.copytree(node / "work", tmp_path / "theirs")
    elsewhere = _pretend_other_machine(tmp_path / "theirs")
    assert _import(tmp_path / "theirs", tmp_path) == 0
    assert _counts(capsys.readouterr().out) == [1, 1, 0]
    assert stage("train", tmp_path) == 0
    rows = read_parquet(tmp_path / "data/train/tiny.parquet").to_pylist()
    assert [(row["status"], row["workers"]) for row in rows] == [("finished", 2)]
    theirs = read_parquet(node / "data/train/tiny.parquet").to_pylist()
    assert rows[0]["top1"] == theirs[0]["top1"]
    assert rows[0]["chain_end"] == theirs[0]["chain_end"] is not None
    assert read_json(_entry(tmp_path / "work") / "result.json")["imported_from"] == elsewhere
    assert (tmp_path / "data/train/tiny/best.pt").read_bytes() == (node / "data/train/tiny/best.pt").read_bytes()


@pytest.mark.parametrize("label", [0, 1])
def test_equal_labels_count_in_files_of_other_bytes(
    label: int, tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As another version of pyarrow writes them. With another label they are other data."""
    data = write_project(tmp_path, study=_STUDY, train={"simulated_workers": 2})
    manifest = read_parquet(data.manifest("train"))
    labels = [(manifest["label"][0].as_py() + label) % 4, *manifest["label"].to_pylist()[1:]]
    column = manifest.column_names.index("label")
    changed = manifest.set_column(column, "label", pa.array(labels, manifest["label"].type))
    pyarrow.parquet.write_table(changed, data.manifest("train"), compression="none")
    assert data.manifest("train").read_bytes() != (node / "data/prepare/train.parquet").read_bytes()
    assert _import(node / "work", tmp_path) == 0
    assert _counts(capsys.readouterr().out) == [1, 1, 0]
    assert stage("train", tmp_path) == 0
    entries = list((tmp_path / "work/cells").glob("[0-9a-f]*"))
    assert len(entries) == 1 + label, "a run that does not count is trained again"


def test_an_earlier_run_gets_the_digest_of_equal_values(
    tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions did not record it. From there on the run counts in files of other bytes."""
    for name in ("equal", "other"):
        (tmp_path / name).mkdir()
    shutil.copytree(node / "work", tmp_path / "earlier")
    entry = _entry(tmp_path / "earlier")
    content = read_json(entry / "identity.json").pop("content")
    write_json(entry / "identity.json", {**read_json(entry / "identity.json"), "content": ""})
    write_checksums(entry)
    assert _import(tmp_path / "earlier", tmp_path / "equal") == 0
    assert read_json(_entry(tmp_path / "equal/work") / "identity.json")["content"] == content != ""
    data = write_project(tmp_path / "other", study=_STUDY, train={"simulated_workers": 2})
    pyarrow.parquet.write_table(read_parquet(data.manifest("train")), data.manifest("train"), compression="none")
    assert _import(tmp_path / "equal/work", tmp_path / "other") == 0
    assert stage("train", tmp_path / "other") == 0
    entries = list((tmp_path / "other/work/cells").glob("[0-9a-f]*"))
    assert len(entries) == 1, "the run is not trained again"


def test_a_second_import_changes_nothing(
    tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.run_log._LINE_INTERVAL_S", 0.0)
    for expected in ([1, 1, 0], [1, 0, 1]):
        assert _import(node / "work", tmp_path) == 0
        shown, progress = capsys.readouterr()
        assert _counts(shown) == expected
        assert progress.startswith("runs import: 1/1 runs, ")
    assert read_json(_entry(tmp_path / "work") / "result.json")["imported_from"] is None


def test_a_packed_ledger_is_imported_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A study that keeps weights trains those runs again, and no other."""
    project = write_verified_project(tmp_path / "project")
    trained = {path.name: path.stat().st_mtime_ns for path in (project / ".work/cells").glob("[0-9a-f]*")}
    packed = tmp_path / "results.tar.xz"
    assert main(["runs", "pack", str(packed), "--ledger", *folders(project)]) == 0
    unpack(packed, tmp_path / "theirs")
    with_weights = {path.parent.name for path in (project / ".work/cells").glob("*/weights.pt")}
    assert 0 < len(with_weights) < len(trained)
    shutil.move(project / ".work", tmp_path / "earlier")
    capsys.readouterr()
    assert main(["runs", "import", str(tmp_path / "theirs/.work"), *folders(project)[::2]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert _counts("\n".join(lines)) == [len(trained), len(trained), 0]
    assert [line for line in lines if "without their weights" in line and f": {len(with_weights)} of" in line]
    imported = {path.name: path.stat().st_mtime_ns for path in (project / ".work/cells").glob("[0-9a-f]*")}
    assert imported.keys() == trained.keys()
    train(project, STUDY_NAME)
    now = {path.name: path.stat().st_mtime_ns for path in (project / ".work/cells").glob("[0-9a-f]*")}
    assert {name for name in now if now[name] != imported[name]} == with_weights


def test_plans_come_along_with_the_dates_of_plans_and_runs(
    tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours = (WorkPaths(root=folder).plans("tiny") for folder in (node / "work", tmp_path / "work"))
    for n_lines in (2, 1):  # the second line counts the plans that are new here
        assert _import(node / "work", tmp_path) == 0
        assert len(capsys.readouterr().out.splitlines()) == n_lines
    assert stage("train", tmp_path) == 0
    assert read_registered_plans(ours) == read_registered_plans(theirs)
    assert len(read_registered_plans(ours)) == 1
    assert read_run_dates(ours) == read_run_dates(theirs)


def test_a_run_of_code_that_joined_later_has_the_familys_name(
    tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_by = read_json(_entry(node / "work") / "identity.json")["job"]["code"]
    members = dict.fromkeys(["0" * 64, trained_by, training_code_digest()])
    monkeypatch.setattr(code_families, "_listed", lambda: (Family(members=tuple(members), records=()),))
    assert _import(node / "work", tmp_path) == 0
    assert read_json(_entry(tmp_path / "work") / "identity.json")["job"]["code"] == "0" * 64
    imported = (_entry(tmp_path / "work") / "result.json").stat().st_mtime_ns
    assert stage("train", tmp_path) == 0
    assert (_entry(tmp_path / "work") / "result.json").stat().st_mtime_ns == imported, "it was trained"


def test_an_import_and_a_study_keep_each_other_out(
    tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers of one ledger could each treat the other's unfinished entry as an old one."""
    monkeypatch.setattr(locks, "_LOCK_GRACE_S", 0.2)
    write_project(tmp_path, study=_STUDY, train={"simulated_workers": 2})
    work = WorkPaths(root=tmp_path / "work")
    with file_lock(work.lock("train"), "a study"):
        refused = run([sys.executable, "-m", "pipeline", *_importing(node / "work", tmp_path)])
        assert refused.returncode == 2
        error = printed_error(refused.stderr)
        assert error.key == "train or runs import"
        assert f" {os.getpid()};" in str(error)
        assert not work.ledger.exists()
        assert stage("train", tmp_path) == 2
        assert printed_error(capsys.readouterr().err).key == "train of any study, or runs import"


def _other_code(work: Path) -> None:
    entry = _entry(work)
    key = read_json(entry / "identity.json")
    key["job"]["code"] = "of an older version"
    write_json(entry / "identity.json", key)
    write_checksums(entry)
    entry.rename(entry.with_name(RunKey(**key).fingerprint))


def _renamed(work: Path) -> None:
    _entry(work).rename(_entry(work).with_name("0" * 24))


def _torn_result(work: Path) -> None:
    path = _entry(work) / "result.json"
    path.write_text(json.dumps({"status": "finished"}))


def _forged_balanced_accuracy(work: Path) -> None:
    path = _entry(work) / "result.json"
    write_json(path, {**read_json(path), "balanced_accuracy": 0.99})
    write_checksums(_entry(work))


def _code_in_weights(work: Path) -> None:
    torch.save({"class_names": ["a"], "network": print}, _entry(work) / "weights.pt")
    write_checksums(_entry(work))


def _nothing(work: Path) -> None:
    shutil.rmtree(work / "cells")


@pytest.mark.parametrize(
    ("harm", "file"),
    [
        (_other_code, ""),
        (_renamed, "cells/[0-9a-f]*"),
        (_torn_result, "cells/[0-9a-f]*"),
        (_forged_balanced_accuracy, "cells/[0-9a-f]*"),
        (_code_in_weights, "cells/[0-9a-f]*/weights.pt"),
        (_nothing, ""),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, node: Path, capsys: pytest.CaptureFixture[str], harm: object, file: str
) -> None:
    shutil.copytree(node / "work", tmp_path / "theirs")
    assert callable(harm)
    harm(tmp_path / "theirs")
    assert _import(tmp_path / "theirs", tmp_path) == 2
    result = next((tmp_path / "theirs").glob(file)) if file else tmp_path / "theirs"
    error = printed_error(capsys.readouterr().err)
    assert error.key == str(result)
    damaged_entry = next((tmp_path / "theirs").glob("cells/[0-9a-f]*"), None) if file else None
    fix = f"; copy the run again, or delete {damaged_entry} and import again"
    assert str(error).endswith(fix) == bool(file)
    assert not (tmp_path / "work" / "cells").exists() or not list((tmp_path / "work" / "cells").iterdir())


def test_without_the_images_a_balanced_accuracy_cannot_be_checked(tmp_path: Path, node: Path) -> None:
    """It is imported, and set aside where the study trains."""
    shutil.copytree(node / "work", tmp_path / "theirs")
    _forged_balanced_accuracy(tmp_path / "theirs")
    data = write_project(tmp_path, study=_STUDY, train={"simulated_workers": 2})
    shutil.move(data.root, tmp_path / "later")
    assert _import(tmp_path / "theirs", tmp_path) == 0
    assert read_json(_entry(tmp_path / "work") / "result.json")["balanced_accuracy"] == 0.99
    shutil.move(tmp_path / "later", data.root)
    assert stage("train", tmp_path) == 0
    assert list((tmp_path / "work/cells/set-aside").iterdir())


def test_a_machine_is_versions_and_a_kind_of_device() -> None:
    assert set(machine_info(torch.device("cpu"))) == {"torch", "torchvision", "numpy", "timm", "device", "arithmetic"}
