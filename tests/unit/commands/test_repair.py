"""Files that a killed DVC leaves damaged are repaired, and no finished stage runs again. The processes are real."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.artifacts.files import write_bytes
from pipeline.commands.doctor.command import check_dvc_files
from pipeline.commands.repair import is_readable_lock, repair_dvc_files
from pipeline.errors import InputError
from pipeline.paths import WorkPaths
from pipeline.processes import process_started_at
from pipeline.stages.harness import back_up_dvc_lock
from tests.fixtures.forked import run_forked, start_forked
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.three_stages import STAGES, ThreeStages
from tests.fixtures.training import wait_until

_RWLOCK = ".dvc/tmp/rwlock"


@pytest.fixture
def project(tmp_path: Path) -> ThreeStages:
    return ThreeStages(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["SIGKILL", "SIGINT"])
@pytest.mark.parametrize(("number", "share"), [(1, 0.0), (2, 0.6), (3, 0.3), (3, 0.97)])
def test_a_lock_cut_short_loses_no_stage(project: ThreeStages, number: int, share: float, sent: str) -> None:
    project.killed("dvc.lock", number, share, sent)
    assert project.runs == [*STAGES[:number]]
    before = (project.folder / "dvc.lock").read_bytes()
    (line,) = project.repair()
    assert line.startswith("dvc.lock: ")
    assert (project.folder / ".work/dvc.lock.damaged").read_bytes() == before
    done = project.dvc()
    assert done.returncode == 0, done.stderr
    assert project.runs == [*STAGES], "each once: those that were finished come from the run cache"
    project.assert_finished()


@pytest.mark.slow
def test_a_killed_dvc_refuses_to_run_until_the_repair(project: ThreeStages) -> None:
    project.killed("dvc.lock", 2, 0.5, "SIGKILL")
    project.killed("rwlock", 1, 0.0, "SIGKILL")  # DVC reads dvc.lock after it
    refused = project.dvc()
    assert refused.returncode != 0
    assert [line.split(":")[0] for line in project.repair()][-1] == "dvc.lock"
    assert project.dvc().returncode == 0
    assert project.runs == [*STAGES]
    project.assert_finished()


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 4, 9])
def test_an_empty_rwlock_is_removed(project: ThreeStages, number: int) -> None:
    project.killed("rwlock", number, 0.0, "SIGKILL")
    assert (project.folder / _RWLOCK).read_bytes() == b""
    assert project.dvc().returncode != 0
    assert [line.partition(": ")[0] for line in project.repair()] == [str(_RWLOCK)]
    assert project.dvc().returncode == 0
    project.assert_finished()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ThreeStages:
    """After a run; tests damage it and restore it."""
    project = ThreeStages(tmp_path_factory.mktemp("finished"))
    assert project.dvc().returncode == 0
    project.commit()
    return project


def test_what_is_sound_stays_as_it_is_without_a_word(finished: ThreeStages) -> None:
    lock = (finished.folder / "dvc.lock").read_bytes()
    assert finished.repair() == []
    assert (finished.folder / "dvc.lock").read_bytes() == lock
    assert [finding.status for finding in check_dvc_files(finished.folder)] == ["ok"]


def _unfinished_copies(folder: Path) -> list[Path]:
    """Files under the names that DVC gives to what it copies."""
    from dvc_objects.fs.utils import tmp_fname

    parents = ("prepare", "report/figures", "filter/timm/tf_efficientnet_lite0")
    copies = [folder / "data" / parent / tmp_fname() for parent in parents]
    for copy in copies:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(b"half an out")
    return copies


def test_unfinished_copies_are_removed_and_other_files_stay(finished: ThreeStages) -> None:
    others = [finished.folder / "data/prepare" / name for name in (".x.tmp", "scan.tmp", ".0123456789abcdef012345.png")]
    copies = _unfinished_copies(finished.folder)
    for other in others:
        other.touch()
    assert {line.partition(": ")[0] for line in finished.repair()} == {
        str(copy.relative_to(finished.folder)) for copy in copies
    }
    assert not any(copy.exists() for copy in copies)
    assert all(other.exists() for other in others)
    assert finished.repair() == []


def test_outside_the_project_it_says_where_to_go(tmp_path: Path) -> None:
    repair = [sys.executable, "-m", "pipeline", "repair"]
    answer = run_forked(repair, cwd=tmp_path, environ=os.environ, timeout=60)
    assert answer.returncode == 2
    assert printed_error(answer.stderr).key == str(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.35, 0.5, 0.999])
def test_a_truncated_lock_is_recognized(finished: ThreeStages, tmp_path: Path, share: float) -> None:
    content = (finished.folder / "dvc.lock").read_bytes()
    lock = tmp_path / "dvc.lock"
    assert is_readable_lock(lock), "a missing one is no damage"
    lock.write_bytes(content)
    assert is_readable_lock(lock)
    lock.write_bytes(content[: int(share * len(content))])
    assert not is_readable_lock(lock)


@pytest.mark.parametrize("kept", ["whole", "damaged", "none"])
def test_the_newest_complete_copy_replaces_it(
    finished: ThreeStages, kept: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of the last stage, else that of the last commit."""
    work, lock = WorkPaths(), finished.folder / "dvc.lock"
    committed = lock.read_bytes()
    newer = committed + b"# newer\n"
    lock.write_bytes(newer)
    monkeypatch.chdir(finished.folder)
    if kept != "none":
        monkeypatch.setenv("DVC_ROOT", str(finished.folder))
        back_up_dvc_lock(work)
    if kept == "damaged":
        work.dvc_lock.write_bytes(newer[:-100])
    lock.write_bytes(committed[:40])
    (repair,) = repair_dvc_files(finished.folder, work)
    assert lock.read_bytes() == (newer if kept == "whole" else committed)
    assert (str(work.dvc_lock) in repair.done) == (kept == "whole")
    lock.write_bytes(committed)
    work.dvc_lock.unlink(missing_ok=True)


def test_a_newer_commit_goes_before_the_copy_of_a_stage(finished: ThreeStages) -> None:
    """As after git pull and dvc pull: the commit is of a later time than the copy."""
    work, lock = WorkPaths(root=finished.folder / ".work"), finished.folder / "dvc.lock"
    committed = lock.read_bytes()
    write_bytes(work.dvc_lock, committed + b"# older\n")
    dated = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=finished.folder, capture_output=True, check=True)
    seconds = int(dated.stdout)
    for age, expected in ((60, committed), (-60, committed + b"# older\n")):
        os.utime(work.dvc_lock, (seconds - age, seconds - age))
        lock.write_bytes(committed[:40])
        (repair,) = repair_dvc_files(finished.folder, WorkPaths())
        assert lock.read_bytes() == expected
        assert (str(WorkPaths().dvc_lock) in repair.done) == (age < 0)
    lock.write_bytes(committed)
    work.dvc_lock.unlink()


def test_a_damaged_commit_is_not_taken(project: ThreeStages) -> None:
    (project.folder / "dvc.lock").write_text("schema: '2.0'\nstages:\n  first:\n    cmd: ec")
    project.commit()
    (line,) = project.repair()
    assert line.startswith("dvc.lock: ")
    assert not (project.folder / "dvc.lock").exists()


def test_without_git_a_new_one_takes_its_place(project: ThreeStages, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "dvc.lock").write_text("schema: '2.0'\nstages:\n  first:\n    cmd: ec")
    monkeypatch.setenv("PATH", "")
    (repair,) = repair_dvc_files(project.folder, WorkPaths())
    assert repair.file == Path("dvc.lock")
    assert not (project.folder / "dvc.lock").exists()


def test_doctor_repairs_as_well(finished: ThreeStages) -> None:
    (finished.folder / _RWLOCK).write_text("")
    (finding,) = check_dvc_files(finished.folder)
    assert (finding.status, finding.repair) == ("ok", "")
    assert finding.detail.startswith(f"{_RWLOCK}: ")
    assert not (finished.folder / _RWLOCK).exists()


def test_a_process_with_the_number_of_a_killed_dvc_is_ignored(finished: ThreeStages) -> None:
    holder = {"pid": os.getpid(), "cmd": "dvc repro"}
    (finished.folder / _RWLOCK).write_text(json.dumps({"write": {str(finished.folder / "third"): holder}}))
    assert finished.run("dvc", "repro", "--force").returncode != 0
    assert repair_dvc_files(finished.folder, WorkPaths()) == [], "a process older than the file may have written it"
    started = process_started_at(os.getpid())
    assert started is not None
    assert started <= time.time()
    os.utime(finished.folder / _RWLOCK, (started - 10, started - 10))
    assert len(repair_dvc_files(finished.folder, WorkPaths())) == 1
    # DVC itself removes a pid without a process.
    (finished.folder / _RWLOCK).write_text(json.dumps({"read": {"x": [{"pid": 2**22 + 1, "cmd": "dvc repro"}]}}))
    assert repair_dvc_files(finished.folder, WorkPaths()) == []


@pytest.mark.slow
def test_nothing_is_touched_while_dvc_runs(project: ThreeStages) -> None:
    """While a stage runs, DVC holds no lock on its files: it is found by its command."""
    (project.folder / "dvc.yaml").write_text("stages:\n  long:\n    cmd: touch began; sleep 60\n    outs: [never]\n")
    dvc = start_forked([sys.executable, "-m", "dvc", "repro"], cwd=project.folder, environ=os.environ)
    try:
        wait_until((project.folder / "began").exists, dvc)
        copies = _unfinished_copies(project.folder)
        assert repair_dvc_files(project.folder, WorkPaths()) == [], "the lock of a living DVC is sound"
        for copy in copies:
            copy.unlink()  # fails if it is gone: a living DVC may be writing it
        (project.folder / _RWLOCK).write_text("")
        with pytest.raises(InputError) as raised:
            repair_dvc_files(project.folder, WorkPaths())
        assert f" {dvc.pid};" in str(raised.value), "the process to end"
        assert raised.value.key == str(_RWLOCK)
        assert [finding.status for finding in check_dvc_files(project.folder)] == ["problem"]
    finally:
        os.killpg(dvc.pid, signal.SIGKILL)
        dvc.wait()
    assert len(repair_dvc_files(project.folder, WorkPaths())) == 1


# A scheduler or a notebook may do this; no argument of its process is named dvc.
_AS_LIBRARY = "from dvc.repo import Repo; Repo().reproduce()"


@pytest.mark.slow
def test_a_program_that_uses_dvc_as_a_library_keeps_its_lock(project: ThreeStages) -> None:
    (project.folder / "dvc.yaml").write_text("stages:\n  long:\n    cmd: touch began; sleep 60\n    outs: [never]\n")
    program = subprocess.Popen(
        [sys.executable, "-c", _AS_LIBRARY], cwd=project.folder, start_new_session=True, text=True
    )
    try:
        wait_until((project.folder / "began").exists, program)
        held = (project.folder / _RWLOCK).read_bytes()
        assert str(program.pid).encode() in held
        assert project.repair() == []
        assert (project.folder / _RWLOCK).read_bytes() == held
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def test_a_killed_dvc_that_its_parent_has_not_reaped(tmp_path: Path) -> None:
    """DVC takes a zombie for alive, and would wait for it."""
    rwlock = tmp_path / _RWLOCK
    rwlock.parent.mkdir(parents=True)
    killed = subprocess.Popen(["true"])
    try:
        while process_started_at(killed.pid) is not None:
            time.sleep(0.01)
        rwlock.write_text(json.dumps({"write": {"x": {"pid": killed.pid, "cmd": "dvc repro"}}}))
        (repair,) = repair_dvc_files(tmp_path, WorkPaths())
        assert str(repair.file) == _RWLOCK
        holders = {name: {"pid": pid, "cmd": "dvc repro"} for name, pid in (("x", killed.pid), ("y", os.getpid()))}
        rwlock.write_text(json.dumps({"write": holders}))
        assert repair_dvc_files(tmp_path, WorkPaths()) == [], "the other one is alive"
    finally:
        killed.wait()


def test_a_process_that_proc_hides_is_taken_for_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(pid: int) -> float:
        raise PermissionError(f"/proc/{pid}/stat")

    monkeypatch.setattr("pipeline.commands.repair.process_started_at", hidden)
    rwlock = tmp_path / _RWLOCK
    rwlock.parent.mkdir(parents=True)
    rwlock.write_text(json.dumps({"write": {"x": {"pid": os.getpid(), "cmd": "dvc repro"}}}))
    assert repair_dvc_files(tmp_path, WorkPaths()) == []


def test_conflicts_of_a_merge_are_left_to_the_person(finished: ThreeStages) -> None:
    lock = finished.folder / "dvc.lock"
    whole = lock.read_bytes()
    conflict = b"schema: '2.0'\n<<<<<<< HEAD\nstages: {}\n=======\n>>>>>>> other\n"
    lock.write_bytes(conflict)
    with pytest.raises(InputError) as raised:
        repair_dvc_files(finished.folder, WorkPaths())
    assert raised.value.key == "dvc.lock"
    assert lock.read_bytes() == conflict
    lock.write_bytes(whole)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"read": [1]}',
        '{"write": {"a": {"pid": Infinity}}}',
        '{"write": {"a": {"pid": NaN}}}',
        "\0",
        '{"write": {"a": {"pid": 1e308}}}',
    ],
    ids=["deep", "list", "infinity", "NaN", "zero", "large"],
)
def test_an_rwlock_of_any_content_is_removed(tmp_path: Path, text: str) -> None:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / _RWLOCK).write_text(text)
    (repair,) = repair_dvc_files(tmp_path, WorkPaths())
    assert str(repair.file) == _RWLOCK
    assert not (tmp_path / _RWLOCK).exists()


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n", "? [1]\n: 2\n", "? {a: 1}\n: 2\n", "schema: '2.0'\nstages: {a: {cmd: *x}}\n", "\0\n",
        "%YAML 9.9\n---\na: 1\n", "!!python/object:os.system {}\n", "[" * 5_000 + "\n", "a: 2024-13-45\n", "3\n",
        "schema: '2.0'\nstages: {a: {cmd: !!int x}}\n", "x: !!timestamp 1\n", "- " * 3_000 + "\n",
    ],
)  # fmt: skip
def test_a_lock_of_any_content_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "dvc.lock").write_text(text)
    assert not is_readable_lock(tmp_path / "dvc.lock")


def test_files_of_a_project_within_a_repository_of_dvc(tmp_path: Path) -> None:
    """`init` makes no second .dvc there."""
    project = tmp_path / "a project"
    project.mkdir()
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / _RWLOCK).write_bytes(b"")
    (project / "dvc.lock").write_text("schema: '2.0'\nstages:\n  prep")
    repairs = repair_dvc_files(project, WorkPaths())
    assert [str(repair.file) for repair in repairs] == [f"../{_RWLOCK}", "dvc.lock"]
    assert not (tmp_path / _RWLOCK).exists()
    assert not (project / "dvc.lock").exists()
    assert repair_dvc_files(project, WorkPaths()) == []
