"""`diagnose`: its report on a study, and its verdicts on bottlenecks that are injected into real trainings."""

import json
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.injected_bottlenecks import BOUND_BY, FAULTS, make_training
from pipeline.__main__ import main
from pipeline.batching import rank_slices, worker_slices
from pipeline.commands.diagnose import timing
from pipeline.commands.diagnose.bottleneck import diagnose, diagnosis_lines, verdict_lines
from pipeline.commands.diagnose.timing import (
    Training,
    measure,
    one_rank_share,
    step_seconds,
    with_synthetic_images,
    without_communication,
)
from pipeline.datasets.sources import SyntheticImages
from pipeline.distributed import World
from pipeline.errors import OutOfMemory
from pipeline.optim import OPTIMIZERS
from pipeline.training.settings import TrainSettings
from tests.fixtures.golden import check_golden
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.times import made_up_times
from tests.fixtures.training import ALONE, TINY, run, write_project


def _command(folder: Path, *more: str) -> list[str]:
    places = [
        f"--{name}={folder / path}" for name, path in (("params", "params.yaml"), ("data", "data"), ("work", "w"))
    ]
    return ["diagnose", "--study", "tiny", "--seconds", "0.2", *places, *more]


@pytest.fixture
def threads_as_before() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# The verdict on what is put in


_STRENGTHS = {"slow_loader": "0.15", "delayed_all_reduce": "0.3", "slow_rank": "0.15", "none": "0"}


@pytest.mark.slow
@pytest.mark.distributed
def test_each_bottleneck_is_found_and_without_one_none_is_named() -> None:
    """Two real ranks, whose passes take 0.1 s and more, and mostly sleep: two faults are measured at the same time."""
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(_STRENGTHS, pool.map(_verdict, *zip(*_STRENGTHS.items(), strict=True)), strict=True))
    # On a busy machine it may be left undecided.
    assert found.pop("none").startswith("compute")
    assert found == {fault: BOUND_BY[fault] for fault in FAULTS if fault != "none"}


def _verdict(fault: str, strength: str) -> str:
    options = ["--bottlenecks", fault, "--strengths", strength, "--seconds", "0.1"]
    ended = run([sys.executable, "-m", "benchmarks.injected_bottlenecks", *options], timeout=500)
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout.splitlines()[-1])["results"]
    return str(row["verdict"])


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "seconds"), [("slow_loader", 0.05), ("none", 0.05)])
def test_a_slow_loader_is_found_on_one_process(fault: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_WARM_UP", 1)
    with FAULTS[fault](seconds, ALONE):
        result = diagnose(measure(make_training(ALONE), seconds=0.05))
    if fault == "none":
        assert result.candidates[0] == "compute"
    else:
        assert result.candidates[0] == "input"
        assert result.parts["input"].median == pytest.approx(seconds, rel=0.5)
    assert result.parts["communication"].median == result.parts["synchronization"].median == 0


# What is compared


def _training(settings: TrainSettings, world: World = ALONE) -> Training:
    return replace(make_training(world), settings=settings)


def test_a_rank_alone_differs_from_the_study_in_its_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Training] = []

    def seconds(training: Training, n_steps: int) -> Any:
        timed.append(training)
        return np.ones(n_steps)

    monkeypatch.setattr(timing, "step_seconds", seconds)
    training = _training(replace(TINY, reduction="exact"), ALONE)
    measure(training, 1.0)
    assert all(replace(one, images=training.images) == training for one in timed)
    assert any(isinstance(one.images, SyntheticImages) for one in timed)


@pytest.mark.parametrize("full", ["train", "SyntheticImages"])
def test_steps_too_large_for_the_memory_name_the_option(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("made up")

    monkeypatch.setattr(timing, full, fail)
    monkeypatch.setattr(timing, "steps_in", lambda *_: 3)
    with pytest.raises(OutOfMemory) as raised:
        measure(_training(TINY), 1.0)
    assert raised.value.key == f"--batch-size {TINY.batch_size}"


@pytest.mark.parametrize("period", [4, 1000])
def test_post_local_sgd_pays_for_averages_of_any_period(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes 1 s and an average 40, in no more steps than there is time for."""
    taken = 0

    def seconds(training: Training, n_steps: int) -> Any:
        nonlocal taken
        taken += n_steps
        result = np.ones(n_steps)
        if training.settings.local_from_step == 0:
            result[training.settings.local_period - 1 :: training.settings.local_period] += 40.0
        return result

    monkeypatch.setattr(timing, "step_seconds", seconds)
    monkeypatch.setattr("pipeline.distributed.all_gather_object", lambda own: [own, own])
    two = World(rank=0, size=2, device=torch.device("cpu"))
    settings = replace(TINY, batch_size=64, simulated_workers=2, local_from_step=70, local_period=period)
    result = diagnose(measure(_training(settings, two), 200.0))
    assert taken < 300
    assert result.parts["communication"].median == pytest.approx(40 / period)
    assert result.step.median == pytest.approx(1 + 40 / period)


@pytest.mark.parametrize("bn_group", [None, 4])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("batch_size", [64, 66])
def test_without_exchange_every_rank_has_the_same_groups(bn_group: int | None, count: int, batch_size: int) -> None:
    settings = replace(TINY, batch_size=batch_size, simulated_workers=4, bn_group=bn_group)
    for rank in range(count):
        world = World(rank=rank, size=count, device=torch.device("cpu"))
        local = without_communication(_training(settings, world)).settings
        before, after = (
            rank_slices(worker_slices(one.batch_size, one.simulated_workers, one.bn_group), rank=rank, world_size=count)
            for one in (settings, local)
        )
        assert (before[0].rows.start, before[-1].rows.stop) == (after[0].rows.start, after[-1].rows.stop)
        groups = [sum((part.group_sizes for part in parts), ()) for parts in (before, after)]
        assert len(groups[0]) == len(groups[1])
        assert max(abs(a - b) for a, b in zip(*groups, strict=True)) <= 1


def test_exact_sums_are_compared_with_as_many_images_at_a_time() -> None:
    two = World(rank=0, size=2, device=torch.device("cpu"))
    plain = without_communication(_training(replace(TINY, batch_size=64, simulated_workers=8, reduction="exact"), two))
    assert plain.micro_batch == 8
    assert plain.settings.reduction == "ddp"


def test_one_rank_alone_does_what_it_does_among_all() -> None:
    settings = replace(TINY, batch_size=64, simulated_workers=4)
    alone = one_rank_share(_training(settings), 2).settings
    assert (alone.batch_size, alone.simulated_workers) == (32, 2)


def test_synthetic_images_look_real_and_are_the_same_every_time() -> None:
    real = make_training(ALONE)
    synthetic = with_synthetic_images(real).images
    assert isinstance(synthetic, SyntheticImages)
    ids, epochs = np.arange(7), np.zeros(7, dtype=np.int64)
    batches = [images.training_batch(ids, epochs) for images in (real.images, synthetic)]
    assert batches[0].shape == batches[1].shape
    assert batches[0].dtype == batches[1].dtype
    assert batches[1].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batches[1], synthetic.evaluation_batch(ids))
    assert len(synthetic) == len(real.images)


def test_steps_are_those_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as requested, after the warm-up steps, without an evaluation."""
    monkeypatch.setattr(timing, "_WARM_UP", 2)
    seen: list[int] = []
    seconds = step_seconds(make_training(ALONE), 4, lambda: seen.append(1))
    assert seconds.shape == (4,)
    assert (seconds > 0).all()
    assert len(seen) == 6


# The command


@pytest.mark.usefixtures("threads_as_before")
def test_one_process_prints_what_bounds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.run_log._LINE_INTERVAL_S", 0.0)
    write_project(tmp_path, study={"models": ["small_cnn"]})
    assert main(_command(tmp_path, f"--trace={tmp_path / 'traces'}")) == 0
    shown, progress = capsys.readouterr()
    assert [line.partition(",")[0] for line in progress.splitlines()][-1] == "diagnose: 8/8 rounds"
    assert shown.startswith("tiny: small_cnn, batch 20 on 1 process, ")
    lines = shown.splitlines()
    assert {"compute", "input", "synchronization", "communication", "step"} <= {
        line.partition(" ")[0] for line in lines
    }
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace.name == "tiny.rank0.json"
    assert any("conv" in event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"])
    # Nothing is recorded.
    assert not (tmp_path / "w").exists()


@pytest.mark.usefixtures("threads_as_before")
def test_the_process_that_starts_the_others_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path, study={"models": ["small_cnn"]}, train={"simulated_workers": 2, "workers": 2})
    made: list[weakref.ref[torch.Tensor]] = []

    def steps(training: Training, _: int) -> list[float]:
        made.append(weakref.ref(training.labels))
        return [0.5]

    def launched(_: str, arguments: list[str], count: int) -> int:
        assert (arguments[-2:], count) == (["--single-rank-seconds", "0.5"], 2)
        assert made[0]() is None
        return 0

    monkeypatch.setattr("pipeline.commands.diagnose.command.steps_in", lambda *_: 1)
    monkeypatch.setattr("pipeline.commands.diagnose.command.step_seconds", steps)
    monkeypatch.setattr("pipeline.distributed.launch", launched)
    assert main(_command(tmp_path)) == 0
    assert made


@pytest.mark.slow
def test_several_processes_are_started_and_reported(tmp_path: Path) -> None:
    write_project(tmp_path, study={"models": ["small_cnn"]}, train={"simulated_workers": 2, "workers": 2})
    ended = run([sys.executable, "-m", "pipeline", *_command(tmp_path)], timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("tiny: small_cnn, batch 20 on 2 processes, cpu, 1 threads each")
    for word in ("scaling ratio", "one rank of 2 alone: ", "verdict"):
        assert ended.stdout.count(word) == 1, ended.stdout


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--batch-size", "100"], "--study tiny"),
        (["--study", "none"], "--study none"),
        (["--batch-size", "7"], "--batch-size 7"),
    ],
)
@pytest.mark.usefixtures("threads_as_before")
def test_errors_are_one_line(
    arguments: list[str], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path, study={"batch_sizes": [20, 100]})
    assert main(_command(tmp_path, *arguments)) == 2
    shown = capsys.readouterr().err
    assert printed_error(shown).key == key
    assert shown.count("\n") == 1


@pytest.mark.usefixtures("threads_as_before")
def test_memory_that_runs_out_names_network_batch_and_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        return torch.empty(2**50, dtype=torch.uint8)

    monkeypatch.setitem(OPTIMIZERS, "sgd", failing)
    write_project(tmp_path, study={"models": ["small_cnn"]}, train={"optimizer": {"name": "sgd"}})
    assert main(_command(tmp_path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert printed_error(line).key == "network small_cnn"
    assert "20" in line.split(), "images of the batch"


# The text


@pytest.mark.parametrize("fault", FAULTS)
def test_a_verdict_names_what_bounds_the_step(fault: str) -> None:
    part = {"slow_loader": "input", "delayed_all_reduce": "communication", "slow_rank": "slow_rank"}.get(fault)
    overhead: Any = {part: 0.2} if part else {}
    assert diagnose(made_up_times(0.1, **overhead)).candidates == (BOUND_BY[fault],)


def test_diagnose_prints_parts_comparisons_and_verdict() -> None:
    """Each verdict; one process and two, whose rank alone was timed or not."""
    slow_rank, one_rank = made_up_times(0.1, slow_rank=0.05, communication=0.02), made_up_times(0.1, shape=(8, 1, 5))
    even = made_up_times(0.1)
    factors = np.array([0.97, 1.04, 0.98, 1.02, 0.99, 1.03, 1.01, 0.96])[:, None, None]
    varying = replace(even, full=even.full * factors, local=even.local * factors[::-1])
    reports = {
        "two processes, one of them slow": diagnosis_lines(
            diagnose(slow_rank), slow_rank, batch_size=64, single_rank_seconds=0.085
        ),
        "two processes, not started by the command": diagnosis_lines(
            diagnose(slow_rank), slow_rank, batch_size=64, single_rank_seconds=None
        ),
        "rounds that vary": diagnosis_lines(diagnose(varying), varying, batch_size=64, single_rank_seconds=0.1),
        "one process": diagnosis_lines(diagnose(one_rank), one_rank, batch_size=64, single_rank_seconds=None),
        "images": verdict_lines(diagnose(made_up_times(0.1, input=0.2))),
        "gradients": verdict_lines(diagnose(made_up_times(0.1, communication=0.2))),
        "undecided": verdict_lines(replace(diagnose(made_up_times(0.1)), candidates=("input", "compute"))),
    }
    text = "".join(f"# {title}\n" + "".join(f"{line}\n" for line in lines) + "\n" for title, lines in reports.items())
    check_golden("diagnose.txt", text)
