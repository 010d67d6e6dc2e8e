"""The train stage trains a damaged run again, and only that one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import Terminated
from pipeline.paths import WorkPaths
from pipeline.stages import concurrent_runs
from pipeline.stages import train as train_stage
from tests.fixtures.made_up_runs import FOUR_CELLS, MadeUpRuns
from tests.fixtures.training import runs_of, stage, write_project


@pytest.mark.parametrize(
    "name",
    [
        "result.json",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("correct.npy", "timing.json", "identity.json")),
    ],
)
def test_a_changed_run_is_set_aside_and_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data = write_project(tmp_path, study=FOUR_CELLS)
    first, again = MadeUpRuns(lambda _: 0.5), MadeUpRuns(lambda _: 0.5)
    monkeypatch.setattr(train_stage, "execute_run", first)
    assert stage("train", tmp_path) == 0
    before: list[dict[str, Any]] = runs_of(data)
    damaged = WorkPaths(root=tmp_path / "work").ledger / before[0]["fingerprint"]
    content = bytearray((damaged / name).read_bytes())
    content[-3] ^= 1
    (damaged / name).write_bytes(content)
    capsys.readouterr()
    monkeypatch.setattr(train_stage, "execute_run", again)
    assert stage("train", tmp_path) == 0
    assert [(spec.arm, spec.settings.seed) for spec in again.called] == [(before[0]["arm"], before[0]["seed"])]
    lines = [line for line in capsys.readouterr().err.splitlines() if str(damaged) in line]
    assert len(lines) == 1
    assert lines[0].endswith("and trained again")
    assert f"{name} has changed since it was written" in lines[0]
    assert runs_of(data) == before


def test_concurrent_runs_with_looks_train_a_damaged_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = {"arms": ["filtered", "random"], "seeds": [0, 1, 2], "looks": [2, 3]}
    report = {"margin": 99.0, "primary": "random"}
    data = write_project(tmp_path, study=study, report=report)
    monkeypatch.setattr(train_stage, "execute_run", MadeUpRuns(lambda _: 0.5))
    assert stage("train", tmp_path) == 0
    key = runs_of(data)[0]["fingerprint"]
    (WorkPaths(root=tmp_path / "work").ledger / key / "result.json").write_text("{}")
    started: list[Sequence[str]] = []

    def train_in_processes(_: Sequence[str], shares: Sequence[Sequence[str]], *__: object) -> None:
        started.extend(shares)
        raise Terminated("the runs are saved")

    monkeypatch.setattr(concurrent_runs, "train_in_processes", train_in_processes)
    write_project(tmp_path, study=study, report=report, train={"concurrent_runs": 2})
    assert stage("train", tmp_path) == 75
    assert started == [[key]]


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_a_run_whose_replacement_was_killed_is_not_trained_again(tmp_path: Path, at_a_time: int) -> None:
    data = write_project(tmp_path, study=FOUR_CELLS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train_stage, "execute_run", MadeUpRuns(lambda _: 0.5))
        assert stage("train", tmp_path) == 0
    entry = WorkPaths(root=tmp_path / "work").ledger / runs_of(data)[0]["fingerprint"]
    entry.rename(entry.with_name(f".{entry.name}.old.4194305.tmp"))
    write_project(tmp_path, study=FOUR_CELLS, train={"concurrent_runs": at_a_time})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train_stage, "execute_run", _train_nothing)
        patched.setattr(concurrent_runs, "train_in_processes", _train_nothing)
        assert stage("train", tmp_path) == 0
    assert entry.is_dir()


def _train_nothing(*_: object, **__: object) -> None:
    raise AssertionError("a finished run is trained")
