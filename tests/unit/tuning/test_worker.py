"""Single epochs from checkpoint to checkpoint equal one uninterrupted run of the trainer."""

import json
import math
import re
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import distributed
from pipeline.commands.tune.run import SearchInputs, read_inputs
from pipeline.config.params import load_params
from pipeline.distributed import World
from pipeline.errors import DataError, InputError, MachineError, Terminated, is_out_of_memory
from pipeline.run_log import RunLog
from pipeline.runs.arm_rows import TrainRows
from pipeline.runs.execution import execute_run
from pipeline.runs.grid import RunSpec
from pipeline.runs.ledger import RunResult
from pipeline.training.checkpointing import Checkpoints
from pipeline.tuning import worker as module
from pipeline.tuning.processes import train_next_epoch
from pipeline.tuning.sources import load_splits, write_mark
from pipeline.tuning.trial import TrialRun, trial_run
from pipeline.tuning.worker import EpochTask
from tests.fixtures.tuning import NAME, write_search

VALUES = {"learning_rates": 0.1, "recipe.optimizer.momentum": 0.9}


@pytest.fixture
def trial(tmp_path: Path) -> tuple[TrialRun, SearchInputs]:
    data = write_search(tmp_path)
    params = load_params(tmp_path / "params.yaml")
    inputs = read_inputs(params, params.tuning[NAME], data)
    return trial_run(params, NAME, VALUES, inputs.summary, inputs.rows), inputs


def task(trial: tuple[TrialRun, SearchInputs], epoch: int, folder: Path) -> EpochTask:
    run, inputs = trial
    mark = write_mark(folder.parent)
    return EpochTask(run=run, epoch=epoch, rows=inputs.rows, source=inputs.source, folder=folder, mark=mark)


def in_one_go(trial: tuple[TrialRun, SearchInputs], weights: Path) -> float | None:
    run, inputs = trial
    run_spec = RunSpec(arm="full", filter_network="", learning_rate=0.1, n_train=1, settings=run.settings)
    with distributed.join_process_group(run.threads) as world:
        splits = load_splits(inputs.source, world.device)
        rows = TrainRows(mask=inputs.rows.train, labels=inputs.rows.labels)
        return execute_run(
            run_spec, splits, rows, world=world, log=RunLog.silent(), weights=weights,
            eval_batch_size=run.recipe.eval_batch_size,
        ).top1  # fmt: skip


def test_epochs_end_at_complete_passes_over_the_training_rows(trial: tuple[TrialRun, SearchInputs]) -> None:
    run, inputs = trial
    n = int(inputs.rows.train.sum())
    assert not (inputs.rows.train & inputs.rows.val).any()
    assert n + int(inputs.rows.val.sum()) == 60
    assert [16 * end - n * epoch for epoch, end in enumerate(run.epoch_ends, start=1)] == [4, 8, 12, 0]
    assert run.settings.steps == run.epoch_ends[-1]


def test_four_single_epochs_equal_one_uninterrupted_run(
    trial: tuple[TrialRun, SearchInputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = in_one_go(trial, tmp_path / "whole.pt")

    def saving(*given: Any, **named: Any) -> RunResult:
        return execute_run(*given, **{**named, "weights": tmp_path / "turns.pt"})

    monkeypatch.setattr(module, "execute_run", saving)
    results = [train_next_epoch(task(trial, epoch, tmp_path / "trial")) for epoch in (1, 2, 3, 4)]
    assert [result.accuracy is not None for result in results] == [True] * 4
    assert results[-1].accuracy == whole
    expected, actual = (
        torch.load(tmp_path / name, weights_only=True)["state_dict"] for name in ("whole.pt", "turns.pt")
    )
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[key], actual[key]) for key in expected)


def test_a_repeated_task_returns_its_result_without_training(
    trial: tuple[TrialRun, SearchInputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [train_next_epoch(task(trial, epoch, tmp_path / "trial")).accuracy for epoch in (1, 2)]
    state = Checkpoints(tmp_path / "trial").load_latest(print)
    assert state is not None
    assert state[0] == trial[0].epoch_ends[1]
    monkeypatch.setattr("pipeline.training.step.TrainStep.run_step", None)
    (tmp_path / "trial" / "epoch-0002.json").unlink()  # as if it had been killed during the evaluation
    assert train_next_epoch(task(trial, 2, tmp_path / "trial")).accuracy == first[1]


def test_a_last_epoch_with_an_unread_result_is_not_trained_again(
    trial: tuple[TrialRun, SearchInputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [train_next_epoch(task(trial, epoch, tmp_path / "trial")) for epoch in (1, 2, 3, 4)]
    assert not list((tmp_path / "trial").glob("step-*"))
    monkeypatch.setattr("pipeline.training.step.TrainStep.run_step", None)
    assert train_next_epoch(task(trial, 4, tmp_path / "trial")) == results[-1]


_RESULT = {"accuracy": 0.5, "reason": "", "seconds": 1.0, "switch_seconds": 0.0, "killed": False}


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "null",
        "{",
        *(json.dumps(_RESULT | changed) for changed in (
            {"accuracy": 7.0}, {"accuracy": "x"}, {"accuracy": math.nan}, {"seconds": None}, {"more": 1},
        )),
    ],
)  # fmt: skip
def test_a_damaged_result_is_not_taken(trial: tuple[TrialRun, SearchInputs], tmp_path: Path, content: str) -> None:
    path = tmp_path / "trial" / "epoch-0001.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(InputError, match="run the same command again") as refused:
        train_next_epoch(task(trial, 1, path.parent))
    assert refused.value.key == str(path)
    assert path.read_text() == content


def test_a_recorded_failure_is_taken(trial: tuple[TrialRun, SearchInputs], tmp_path: Path) -> None:
    path = tmp_path / "trial" / "epoch-0001.json"
    path.parent.mkdir()
    path.write_text(json.dumps(_RESULT | {"accuracy": None, "reason": "diverged"}))
    assert train_next_epoch(task(trial, 1, path.parent)).reason == "diverged"


def test_a_trial_that_does_not_fit_the_memory_of_a_cpu_fails(
    trial: tuple[TrialRun, SearchInputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **__: Any) -> None:
        torch.empty(1 << 50)

    monkeypatch.setattr(module, "train", train)
    result = train_next_epoch(task(trial, 1, tmp_path / "trial"))
    assert result.accuracy is None
    assert is_out_of_memory(RuntimeError(result.reason))


@pytest.mark.parametrize(
    "error",
    [
        DataError("train/ash/1.png: No such file or directory; put the image back"),
        MachineError("compile: needs a C++ compiler and finds none"),
        RuntimeError("CUDA error: ECC"),
        RuntimeError("can't start new thread"),
    ],
)
def test_errors_of_other_causes_end_the_search_and_are_not_stored(
    error: Exception, trial: tuple[TrialRun, SearchInputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "train", _raises(error))
        with pytest.raises(type(error)):
            train_next_epoch(task(trial, 1, tmp_path / "trial"))
    assert train_next_epoch(task(trial, 1, tmp_path / "trial")).accuracy is not None


@pytest.mark.parametrize(
    "error",
    [
        InputError("micro_batch: 2 is too small"),
        torch.OutOfMemoryError("tried"),
        # Memory of libraries, in addition to that of torch's allocator.
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
        OverflowError("too large"),
    ],
)
def test_errors_that_settings_can_cause_fail_the_trial(
    error: Exception, trial: tuple[TrialRun, SearchInputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "train", _raises(error))
    (tmp_path / "trial").mkdir()
    Checkpoints(tmp_path / "trial").save(1, {})
    result = train_next_epoch(task(trial, 1, tmp_path / "trial"))
    assert (result.accuracy, result.reason) == (None, f"{type(error).__name__}: {error}")
    assert not list((tmp_path / "trial").glob("step-*"))


def _raises(error: Exception) -> Callable[..., None]:
    def train(*_: Any, **__: Any) -> None:
        raise error

    return train


@pytest.mark.parametrize(("reserved_gib", "others"), [(70, False), (30, True)])
def test_memory_of_other_processes_is_not_a_failure_of_the_trial(
    reserved_gib: int, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 80 GiB, 9.5 are free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (19 << 29, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved_gib << 30)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    with pytest.raises(InputError) if others else nullcontext() as refused:
        module._check_gpu_not_shared(World(rank=0, size=1, device=torch.device("cuda")))
    if refused is not None:
        assert refused.value.key == "NVIDIA H100"
        assert re.findall(r"([\d.]+) GiB", str(refused.value)) == ["40.5"], "what others hold"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"digest": "of other images"}, ""),
        ({"machine": (("torch", "1.13.0"),)}, f"torch {torch.__version__}"),
        ({"machine": (("device", "NVIDIA H100"),)}, "NVIDIA H100"),
        ({"code": "as it was edited"}, ""),
    ],
)
def test_a_process_with_other_data_or_other_bits_trains_nothing(
    changed: dict[str, Any], named: str, trial: tuple[TrialRun, SearchInputs], tmp_path: Path
) -> None:
    run, inputs = trial
    elsewhere = replace(inputs, source=replace(inputs.source, **changed))
    with pytest.raises(InputError) as raised:
        train_next_epoch(task((run, elsewhere), 1, tmp_path / "trial"))
    assert named in str(raised.value)
    assert not list((tmp_path / "trial").glob("step-*"))


@pytest.mark.parametrize("there", ["nothing", "an older search"])
def test_a_process_that_does_not_share_the_folder_trains_nothing(
    there: str, trial: tuple[TrialRun, SearchInputs], tmp_path: Path
) -> None:
    asked = task(trial, 1, tmp_path / "checkpoints" / "trial")
    if there == "nothing":
        shutil.rmtree(tmp_path / "checkpoints")
    else:
        write_mark(tmp_path / "checkpoints")
    with pytest.raises(InputError) as raised:
        train_next_epoch(asked)
    assert raised.value.key == str(tmp_path / "checkpoints")
    assert not asked.folder.exists()


def test_a_task_reports_the_cost_of_a_context_switch(trial: tuple[TrialRun, SearchInputs], tmp_path: Path) -> None:
    result = train_next_epoch(task(trial, 1, tmp_path / "trial"))
    assert 0 < result.switch_seconds < result.seconds


@pytest.mark.parametrize("fails", [False, True])
def test_sigterm_after_the_last_step_of_an_epoch_ends_the_search(
    fails: bool, trial: tuple[TrialRun, SearchInputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last step of an epoch, which is kept, or in a trial that then fails, which is found out again."""
    whole = [train_next_epoch(task(trial, epoch, tmp_path / "whole")).accuracy for epoch in (1, 2)]
    save = Checkpoints.save

    def asked(self: Checkpoints, step: int, state: Mapping[str, Any]) -> None:
        save(self, step, state)
        if step == trial[0].epoch_ends[0]:
            signal.raise_signal(signal.SIGTERM)
            if fails:
                raise torch.OutOfMemoryError

    def end(*_: object) -> None:
        raise Terminated("as the command does")

    before = signal.signal(signal.SIGTERM, end)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Checkpoints, "save", asked)
            with pytest.raises(Terminated):
                train_next_epoch(task(trial, 1, tmp_path / "trial"))
    finally:
        signal.signal(signal.SIGTERM, before)
    saved = Checkpoints(tmp_path / "trial").load_latest(print)
    assert saved is not None
    assert saved[0] == trial[0].epoch_ends[0]
    assert [train_next_epoch(task(trial, epoch, tmp_path / "trial")).accuracy for epoch in (1, 2)] == whole
