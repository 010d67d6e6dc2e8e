"""Trials on several processes, with real torchrun."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.commands.tune.run import SearchInputs, read_inputs, split_gpus
from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.training.checkpointing import Checkpoints
from pipeline.tuning import processes
from pipeline.tuning.processes import train_next_epoch
from pipeline.tuning.sources import write_mark
from pipeline.tuning.trial import trial_run
from pipeline.tuning.worker import EpochResult, EpochTask
from tests.fixtures.forked import Process, parent_of_forked
from tests.fixtures.interrupted_study import HOOKS
from tests.fixtures.training import start
from tests.fixtures.tuning import NAME, leaderboard_of, tune, write_search

_TWO = {"recipe.simulated_workers": 2, "recipe.workers": 2}


@pytest.fixture(autouse=True)
def forked_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the launchers of trials by fork; they end where another process than the named one is their parent."""

    def popen(args: Sequence[str], **options: Any) -> Process:
        assert args[-1] == str(os.getpid())
        assert options == {"stdin": subprocess.DEVNULL, "start_new_session": True}
        return start([*args[:-1], str(parent_of_forked())])

    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL))


def _inputs(folder: Path) -> SearchInputs:
    data = write_search(folder)
    params = load_params(folder / "params.yaml")
    return read_inputs(params, params.tuning[NAME], data)


def _task(folder: Path, inputs: SearchInputs, values: Mapping[str, Any], *, name: str = "0000") -> EpochTask:
    params = load_params(folder / "params.yaml")
    run = trial_run(params, NAME, {"learning_rates": 0.1, **values}, inputs.summary, inputs.rows)
    checkpoints = folder / "checkpoints"
    return EpochTask(
        run=run, epoch=1, rows=inputs.rows, source=inputs.source, folder=checkpoints / name,
        mark=write_mark(checkpoints),
    )  # fmt: skip


def _state(task: EpochTask) -> Any:
    actual = Checkpoints(task.folder).load_latest(print)
    assert actual is not None
    step, state = actual
    assert step == task.run.epoch_ends[task.epoch - 1]
    return state


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.subprocess
def test_two_processes_come_to_the_bits_of_one(tmp_path: Path) -> None:
    """With exact sums; each epoch continues from the checkpoint of the previous one."""
    inputs, exact = _inputs(tmp_path), {"recipe.simulated_workers": 2, "recipe.reduction": "exact"}
    curves, states = [], []
    for workers in (1, 2):
        values = {**exact, "recipe.workers": workers}
        first = _task(tmp_path, inputs, values, name=f"{workers}")
        tasks = [replace(first, epoch=epoch) for epoch in (1, 2)]
        curves.append([train_next_epoch(task).accuracy for task in tasks])
        states.append(_state(tasks[-1])["model"])
    assert curves[0] == curves[1]
    assert None not in curves[0]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.subprocess
def test_a_trial_that_diverges_on_ranks_has_the_reason_of_one(tmp_path: Path) -> None:
    inputs, hot = _inputs(tmp_path), {"learning_rates": 1e30, "recipe.simulated_workers": 2}
    alone, ranks = (
        train_next_epoch(_task(tmp_path, inputs, {**hot, "recipe.workers": workers}, name=f"{workers}"))
        for workers in (1, 2)
    )
    assert (ranks.accuracy, ranks.killed) == (None, False)
    assert ranks.reason == alone.reason != ""


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("error", "ended_by"), [("MemoryError", None), ("PermissionError", PermissionError), ("KeyError", RuntimeError)]
)
def test_errors_of_one_rank_are_distinguished(
    error: str, ended_by: type[Exception] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the trial's settings, of the machine, or a fault; rank 0 alone saves, and the other waits for it."""
    task = _task(tmp_path, _inputs(tmp_path), _TWO)
    monkeypatch.setenv("PYTHONPATH", str(HOOKS))
    monkeypatch.setenv("ERROR", f"{error} /.step-")
    if ended_by is None:
        result = train_next_epoch(task)
        assert result.accuracy is None
        assert result.reason.startswith("OutOfMemory: ")
    else:
        with pytest.raises(ended_by):
            train_next_epoch(task)
    assert not list(task.folder.glob("tmp*"))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.subprocess
def test_bad_input_that_ranks_find_ends_the_search_in_one_line(tmp_path: Path) -> None:
    task = _task(tmp_path, _inputs(tmp_path), _TWO)
    elsewhere = replace(task, source=replace(task.source, digest="of other images"))
    with pytest.raises(InputError) as raised:
        train_next_epoch(elsewhere)
    assert raised.value.key == str(tmp_path / "data")
    assert not list(task.folder.glob("epoch-*"))


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.subprocess
def test_a_killed_rank_is_distinguished_from_a_failed_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is left of it that would be taken for a result."""
    task = _task(tmp_path, _inputs(tmp_path), _TWO)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", str(HOOKS))
        patched.setenv("FAULT", "SIGKILL self /.step- 1")
        actual = train_next_epoch(task)
    assert replace(actual, seconds=0.0) == EpochResult(
        accuracy=None, reason="a process that trained it died; give it more memory, or train on fewer", seconds=0.0,
        killed=True,
    )  # fmt: skip
    assert train_next_epoch(task).accuracy is not None


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.subprocess
def test_a_search_over_what_needs_a_process_for_every_worker(tmp_path: Path) -> None:
    """Ways to compress gradients, side by side on Dask's workers, and in turn in this process."""
    shared: dict[str, Any] = {
        "train": {"simulated_workers": 2, "workers": 2},
        "space": {"recipe.communication.compression": {"choices": ["none", "bf16"]}},
        "sampler": {"name": "grid"},
        "trials": None,
        "max_concurrent_trials": None,
        "epochs": 1,
        "pruner": {"name": "none"},
    }
    local = {"scheduler": "local", "workers": 2}
    actual = []
    for way in ("parallel", "round_robin"):
        data = write_search(tmp_path / way, **shared, scheduler=way, dask=local)
        assert tune(tmp_path / way) == 0
        summary = json.loads(data.tuning_summary(NAME).read_text())
        assert (summary["trials"], summary["failed"], summary["epochs"]) == (2, 0, 2)
        actual.append([path.read_bytes() for path in (data.leaderboard(NAME), data.tuning_curves(NAME))])
    assert actual[0] == actual[1]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.subprocess
def test_accumulation_picks_the_batch_size_that_all_workers_pick(tmp_path: Path) -> None:
    """The preset batch-size-tuning at tiny size: the same trials, accuracies, prunings and winner."""
    search: dict[str, Any] = {
        "space": {"batch_sizes": {"choices": [8, 32]}},
        "sampler": {"name": "grid"},
        "trials": None,
        "max_concurrent_trials": None,
        "epochs": 2,
    }
    tables = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        train = {"simulated_workers": 2, "workers": workers, "reduction": "exact", "bn_group": 4}
        data = write_search(folder, train=train, **search)
        assert tune(folder) == 0
        board = leaderboard_of(data)
        assert {int(row["batch_sizes"]) for row in board} == {8, 32}
        tables.append([path.read_bytes() for path in (data.leaderboard(NAME), data.tuning_curves(NAME))])
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("gpus", "each", "shares"),
    [("", 2, []), ("012", 1, ["0", "1", "2"]), ("01234", 2, ["0,1", "2,3"]), ("01", 4, ["0,1"])],
)
def test_each_worker_has_a_share_of_the_gpus(gpus: str, each: int, shares: list[str]) -> None:
    """Too few for one trial are left for its ranks to complain of."""
    assert split_gpus(list(gpus), each) == shares
