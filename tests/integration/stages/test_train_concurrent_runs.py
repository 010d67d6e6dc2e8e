"""Runs of a study that train at the same time give the tables of those that train one after the other."""

import os
import re
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.artifacts.files import read_json
from pipeline.config.params import load_params
from pipeline.distributed import LaunchPlan
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import stderr_log
from pipeline.runs.grid import RunSpec
from pipeline.runs.ledger import Ledger, RunResult
from pipeline.stages.concurrent_runs import StudyMonitor, divide, n_processes, opening_line, trains_alone
from pipeline.stages.harness import StageContext
from pipeline.training.run_key import RunKey
from tests.fixtures.made_up_runs import MadeUpRuns
from tests.fixtures.process_tree import alive, descendants
from tests.fixtures.projects import NETWORK, ROOT
from tests.fixtures.training import TINY, command, kill, run, runs_of, start, wait_until, write_project

_STUDY = {"models": ["small_cnn"], "arms": ["full", "filtered"], "seeds": [0, 1]}
_AT_ONCE = {"concurrent_runs": 2}


def _tables(data: DataPaths) -> list[bytes]:
    paths = (data.runs("tiny"), data.history("tiny"), data.correct("tiny"), data.trained_weights("tiny"))
    return [path.read_bytes() for path in paths]


@pytest.mark.slow
def test_two_at_a_time_give_the_tables_of_one_after_the_other(tmp_path: Path) -> None:
    tables = []
    for name, train in (("alone", {}), ("two", _AT_ONCE)):
        (tmp_path / name).mkdir()
        data = write_project(tmp_path / name, study=_STUDY, train=train)
        done = run(command("train", tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert ("4 runs, 2 at a time, each by one process of 1 threads" in done.stderr) == bool(train), done.stderr
        tables.append(_tables(data))
        assert [row["status"] for row in runs_of(data)] == ["finished"] * 4
        lines = [re.match(r"train@tiny: run (\d of \d).*: top-1 ", line) for line in done.stderr.splitlines()]
        assert [line[1] for line in lines if line] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"], done.stderr
        assert "All runs have ended." in (data.live_metrics / "report.html").read_text()
        assert read_json(data.live_metrics / "metrics.json")["runs_ended"] == 4
    assert tables[0] == tables[1]
    again = run(command("train", tmp_path / "two"))
    assert again.returncode == 0
    assert "at a time" not in again.stderr


def _has_new(checkpoints: Path, before: set[Path]) -> bool:
    return len({*checkpoints.glob("*/*")} - before) >= 2


def _diverged() -> RunResult:
    spec = RunSpec(arm="full", filter_network=NETWORK, learning_rate=0.1, n_train=20, settings=TINY)
    return MadeUpRuns(lambda _: None)(spec, None, None, weights=None)


def _context(tmp_path: Path) -> StageContext:
    return StageContext(
        stage="train", item="tiny", params=load_params(ROOT / "tests" / "params.yaml"), log=stderr_log(None),
        data=DataPaths(root=tmp_path), work=WorkPaths(root=tmp_path),
    )  # fmt: skip


def test_the_time_left_includes_earlier_processes_of_resumed_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    ledger = Ledger(tmp_path / "runs")
    keys = [RunKey(job={"seed": seed}, machine={}) for seed in range(4)]
    names = {key.fingerprint: "run" for key in keys}
    costs = dict.fromkeys(names, 100)
    monitor = StudyMonitor(_context(tmp_path), ledger, names, costs, n_processes=2, clock=lambda: now)
    now = 60.0
    ledger.add(keys[0], replace(_diverged(), seconds=660.0))
    monitor.update()
    # 60 s, and 600 s in which two processes trained: three more such runs take 3 * 360 s.
    assert "run 1 of 4, about 18 min left" in capsys.readouterr().err


def test_a_run_is_reported_when_its_entry_is_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is trained again, for its weights, has an older entry."""
    ledger, diverged = Ledger(tmp_path / "runs"), _diverged()
    keys = [RunKey(job={"seed": seed}, machine={}) for seed in range(2)]
    names = {key.fingerprint: name for key, name in zip(keys, ("first", "second"), strict=True)}
    ledger.add(keys[1], diverged)
    context = _context(tmp_path)
    monitor = StudyMonitor(context, ledger, names, dict.fromkeys(names, 100), n_processes=2)
    monitor.update()
    assert not capsys.readouterr().err
    for number, key in enumerate(keys, start=1):
        ledger.add(key, diverged)
        monitor.update()
        monitor.update()
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"train@tiny: run {number} of 2")
        assert line.endswith(f"; {names[key.fingerprint]}: diverged in 1.5 s")
        assert read_json(context.data.live_metrics / "metrics.json")["runs_ended"] == number


@pytest.mark.slow
def test_an_interrupted_stage_saves_its_runs_and_resumes_them(tmp_path: Path) -> None:
    """All processes end with it, and the same command then gives the tables of an uninterrupted stage."""
    long = {**_STUDY, "arms": ["full"], "budget": {"steps": 100}, "recipe": {"checkpoint": {"steps": 1}}}
    for name in ("interrupted", "whole"):
        (tmp_path / name).mkdir()
        write_project(tmp_path / name, study=long, train=_AT_ONCE)
    checkpoints = WorkPaths(root=tmp_path / "interrupted/work").checkpoints("train@tiny")
    # To the stage, and SIGKILL to one process.
    for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        before = {*checkpoints.glob("*/*")}
        stage = start(command("train", tmp_path / "interrupted"))
        try:
            wait_until(partial(_has_new, checkpoints, before), stage)
            family = descendants(stage.pid)
            if sent == signal.SIGKILL:
                os.kill(max(family), sent)
            else:
                stage.send_signal(sent)
            _, errors = stage.communicate(timeout=60)
        finally:
            kill(stage)
        assert stage.returncode == (128 + sent if sent == signal.SIGKILL else 75), errors
        said = [line for line in errors.splitlines() if line.startswith(("terminated", "interrupted"))]
        resumes = ["terminated: the runs are saved; run the same command again to resume"]
        assert said == ([] if sent == signal.SIGKILL else resumes), errors
        assert "Traceback" not in errors
        assert not alive(family)
    for name in ("interrupted", "whole"):
        done = run(command("train", tmp_path / name))
        assert done.returncode == 0, done.stderr
    assert _tables(DataPaths(root=tmp_path / "interrupted/data")) == _tables(DataPaths(root=tmp_path / "whole/data"))


@given(costs=st.dictionaries(st.text(min_size=1), st.integers(1, 100)), n=st.integers(1, 5))
def test_every_run_is_in_one_share(costs: dict[str, int], n: int) -> None:
    shares = divide(costs, n)
    assert len(shares) == min(n, len(costs))
    assert sorted(key for share in shares for key in share) == sorted(costs)
    loads = [sum(costs[key] for key in share) for share in shares]
    assert not loads or max(loads) - min(loads) <= max(costs.values())


@pytest.mark.parametrize(("requested", "gpus", "expected"), [(3, 0, 3), (3, 8, 3), ("auto", 0, 1), ("auto", 8, 8)])
def test_automatic_is_one_run_on_each_gpu(requested: int | str, gpus: int, expected: int) -> None:
    assert n_processes(requested, gpus) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workers", "valid", "gpus", "batch", "alone"),
    [
        ("auto", [1, 2, 4], 0, 20_480, True),  # no GPU: one process
        (1, [1, 2, 4], 4, 20_480, True),
        ("auto", [1, 2, 4], 4, 1_024, True),
        ("auto", [1, 2, 4], 4, 1_025, False),
        (4, [1, 2, 4], 4, 256, False),  # by request
        ("auto", [4], 4, 256, False),  # compression and post-local SGD need a process for each worker
    ],
)
def test_small_batches_get_one_gpu_and_large_ones_all(
    monkeypatch: pytest.MonkeyPatch, workers: int, valid: list[int], gpus: int, batch: int, alone: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    plan = LaunchPlan(workers=workers, valid_world_sizes=valid, threads=1)
    assert trains_alone(plan, batch) == alone


@pytest.mark.parametrize(
    ("workers", "gpus", "larger", "expected"),
    [
        ("auto", 4, 3, "batches of up to 1,024 images one GPU each, 3 larger runs on all GPUs afterwards"),
        ("auto", 4, 1, "batches of up to 1,024 images one GPU each, 1 larger run on all GPUs afterwards"),
        ("auto", 4, 0, "batches of up to 1,024 images one GPU each"),
        ("auto", 1, 0, "each by one process on its GPU"),
        (1, 4, 0, "each by one process on its GPU"),
        ("auto", 0, 0, "each by one process of 3 threads"),
    ],
)
def test_the_first_line_says_which_runs_get_one_gpu(workers: Any, gpus: int, larger: int, expected: str) -> None:
    plan = LaunchPlan(workers=workers, valid_world_sizes=[1, 2, 4], threads=3)
    line = opening_line(plan, n_runs=6, n_at_a_time=2, n_gpus=gpus, n_larger=larger, threads=3)
    assert line == f"6 runs, 2 at a time, {expected} (concurrent_runs)"
