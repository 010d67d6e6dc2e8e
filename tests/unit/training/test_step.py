"""What acts on a gradient acts once per global batch, in however many passes it was computed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.step_operations import StepCounts
from pipeline.batching import BatchSlice, GlobalBatch, RankBatch, merge_micro_batches, worker_slices
from pipeline.models import build_network
from pipeline.run_log import RunLog
from pipeline.training import gradients
from pipeline.training.gradients import TrainLoss, accumulate_gradients
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState, start_state
from pipeline.training.step import TrainStep
from tests.fixtures.training import ALONE, NAMES, TINY, distance, parameters_of, random_train_loss

N, BATCH, WORKERS, STEPS = 48, 24, 4, 4
_TRAIN_LOSS = random_train_loss(N)
# Without BatchNorm, so that one plain batch is the reference.
SETTINGS = replace(
    TINY, network="small_cnn", batch_size=BATCH, simulated_workers=WORKERS, steps=STEPS, schedule="cosine",
    warmup_steps=2, optimizer_options={"momentum": 0.9, "nesterov": False}, weight_decay=0.0, label_smoothing=0.0,
)  # fmt: skip


def _batch(step: int) -> GlobalBatch:
    rng = np.random.default_rng(step)
    return GlobalBatch(sample_ids=rng.integers(0, N, BATCH), epochs=np.full(BATCH, step))


def _start(
    settings: TrainSettings, train_loss: TrainLoss = _TRAIN_LOSS, max_size: int = 6
) -> tuple[TrainState, TrainStep]:
    """In double precision if the images are."""
    state = start_state(settings, ALONE)
    if train_loss is _TRAIN_LOSS:
        state.model.double()
        if state.average is not None:
            state.average.module.double()
    workers = worker_slices(settings.batch_size, settings.simulated_workers)
    pair = GlobalBatch(sample_ids=np.arange(2), epochs=np.zeros(2, dtype=np.int64))
    rank_batch = RankBatch(slices=workers, micro_batches=merge_micro_batches(workers, max_size))
    train_step = TrainStep(
        settings,
        state,
        train_loss,
        batches={settings.batch_size: rank_batch},
        track_from_step=0,
        world=ALONE,
        options=RunOptions(),
        log=RunLog.silent(),
    )
    train_step.warm_up(pair)
    return state, train_step


def _train(settings: TrainSettings = SETTINGS, *, max_size: int = 6) -> TrainState:
    state, train_step = _start(settings, max_size=max_size)
    for number in range(settings.steps):
        train_step.run_step(_batch(number))
    return state


def _plain(settings: TrainSettings = SETTINGS) -> list[Tensor]:
    """The weights after each step of torch's own loop: one whole batch, clip, momentum, the rate of the step."""
    model = build_network(settings.network, len(NAMES), stem=settings.stem, seed=settings.seed).double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    weights = []
    for number in range(settings.steps):
        optimizer.param_groups[0]["lr"] = settings.lr_at(number)
        optimizer.zero_grad()
        whole = BatchSlice(rows=slice(0, BATCH), group_sizes=(BATCH,))
        (_TRAIN_LOSS.summed_loss(model, _batch(number), whole) / BATCH).backward()
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        weights.append(parameters_of(model))
    return weights


# Once per step


_CLIPPED = replace(SETTINGS, clip_norm=0.05)
_EITHER = pytest.mark.parametrize("settings", [SETTINGS, _CLIPPED], ids=["unclipped", "clipped"])


@_EITHER
@pytest.mark.parametrize("max_size", [6, 13, BATCH])
@pytest.mark.parametrize("reduction", ["ddp", "exact"])
def test_steps_are_those_of_one_plain_batch(settings: TrainSettings, max_size: int, reduction: Any) -> None:
    state = _train(replace(settings, reduction=reduction), max_size=max_size)
    assert distance(parameters_of(state.model), _plain(settings)[-1]) <= (1e-12 if reduction == "ddp" else 1e-11)
    assert state.step == STEPS
    assert state.loss_count == STEPS * BATCH


def test_clipping_bites() -> None:
    """Else the test above would show nothing of it."""
    assert distance(_plain(_CLIPPED)[-1], _plain()[-1]) > 1e-4


Accumulate = Callable[..., Tensor]


def _clipping_per_micro_batch(
    model: nn.Module, train_loss: TrainLoss, batch: GlobalBatch, parts: Sequence[BatchSlice], **options: Any
) -> Tensor:
    total = torch.zeros(())
    for part in parts:
        total = total + accumulate_gradients(model, train_loss, batch, [part], **options)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    return total


def _exact(*args: Any, **options: Any) -> Tensor:
    return accumulate_gradients(*args, **options)


@pytest.mark.parametrize(("mutant", "caught"), [(_exact, False), (_clipping_per_micro_batch, True)])
def test_clipping_per_micro_batch_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: Accumulate, caught: bool) -> None:
    monkeypatch.setattr(gradients, "accumulate_gradients", mutant)
    error = distance(parameters_of(_train(_CLIPPED).model), _plain(_CLIPPED)[-1])
    assert (error > 1e-5) == caught


class _SchedulePerMicroStep(TrainStep):
    """Counts passes where it should count steps."""

    def run_step(self, batch: GlobalBatch) -> None:
        steps = self._state.step
        self._state.step = min(SETTINGS.steps - 1, steps * len(self._batches[batch.size].micro_batches))
        super().run_step(batch)
        self._state.step = steps + 1


def test_a_schedule_per_micro_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TrainStep", _SchedulePerMicroStep)
    assert distance(parameters_of(_train().model), _plain()[-1]) > 1e-5


def test_the_rate_is_that_of_the_step() -> None:
    state, train_step = _start(SETTINGS)
    for number in range(STEPS):
        train_step.run_step(_batch(number))
        assert [group["lr"] for group in state.optimizer.param_groups] == [SETTINGS.lr_at(number)] * 3


@pytest.mark.parametrize("max_size", [6, BATCH])
def test_the_average_moves_once_per_step(max_size: int) -> None:
    """Torch's own first update copies the weights; after t updates the decay is at most (1 + t) / (10 + t)."""
    decay = 0.2
    state = _train(replace(SETTINGS, ema_decay=decay), max_size=max_size)
    expected, *later = _plain()
    for updates, weights in enumerate(later, start=1):
        reached = min(decay, (1 + updates) / (10 + updates))
        expected = reached * expected + (1 - reached) * weights
    assert state.average is not None
    assert distance(parameters_of(state.average.module), expected) <= 1e-12


@pytest.mark.parametrize("decay", [0.5, 0.999, 0.99999])
def test_a_short_run_does_not_average_its_random_start(decay: float) -> None:
    state = start_state(replace(SETTINGS, ema_decay=decay), ALONE)
    assert state.average is not None
    for value in (1.0, *[0.0] * 20):
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter.fill_(value)
        state.average.update_parameters(state.model)
    assert float(parameters_of(state.average.module).max()) < 1e-3


def test_the_average_reaches_its_decay() -> None:
    state = start_state(replace(SETTINGS, ema_decay=0.9), ALONE)
    assert state.average is not None
    for step in range(200):
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter.fill_(0.0 if step < 199 else 1.0)
        state.average.update_parameters(state.model)
    torch.testing.assert_close(
        parameters_of(state.average.module), torch.full_like(parameters_of(state.model), 0.1), rtol=1e-6, atol=0
    )


def test_gradients_are_forgotten_between_steps() -> None:
    state = _train()
    assert all(parameter.grad is None for parameter in state.model.parameters())


# Losses and the meter


@pytest.mark.parametrize("reduction", ["ddp", "exact"])
def test_losses_are_summed_until_they_are_recorded(reduction: Any) -> None:
    settings = replace(SETTINGS, reduction=reduction, learning_rate=1e-300)
    model = build_network("small_cnn", len(NAMES), stem="imagenet", seed=settings.seed).double().train()
    whole = BatchSlice(rows=slice(0, BATCH), group_sizes=(BATCH,))
    expected = sum(float(_TRAIN_LOSS.summed_loss(model, _batch(number), whole).detach()) for number in range(STEPS))
    assert float(_train(settings).loss_sum) == pytest.approx(expected, rel=1e-12)


def test_metered_steps_are_the_same_steps() -> None:
    state = _train(replace(SETTINGS, noise_scale_steps=3))
    assert distance(parameters_of(state.model), _plain()[-1]) <= 1e-12
    assert [(sample.small_batch, sample.big_batch) for sample in state.noise] == [(BATCH / WORKERS, BATCH)] * 2
    assert all(sample.mean_small_sq_norm > sample.big_sq_norm > 0 for sample in state.noise)


# Loss scaling


_FP16 = replace(SETTINGS, precision="fp16")
_SINGLES = random_train_loss(N, dtype=torch.float32, precision="fp16")


def _scaled(settings: TrainSettings = _FP16, *, scale: float) -> tuple[TrainState, TrainStep]:
    state, train_step = _start(settings, _SINGLES)
    state.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    return state, train_step


@pytest.mark.parametrize(
    "changes", [{}, {"clip_norm": 0.05}, {"reduction": "exact"}, {"noise_scale_steps": 1}], ids=str
)
def test_a_scale_is_taken_out_again(changes: dict[str, Any]) -> None:
    """Clipping, too, sees the gradient without it."""
    settings = replace(_FP16, **changes)
    weights = []
    for scale in (1.0, 1024.0):
        state, train_step = _scaled(settings, scale=scale)
        for number in range(STEPS):
            train_step.run_step(_batch(number))
        assert state.skipped_steps == 0
        weights.append(parameters_of(state.model))
    start = parameters_of(_scaled(scale=1.0)[0].model)
    assert distance(weights[1] - start, weights[0] - start) <= 0.02  # fp16 rounds small gradients away


def test_the_scale_grows_with_steps_and_not_with_passes() -> None:
    state, train_step = _scaled(scale=64.0)
    scales = []
    for number in range(4):
        train_step.run_step(_batch(number))
        assert state.scaler is not None
        scales.append(state.scaler.get_scale())
    assert scales == [64, 128, 128, 256]


def test_a_scaled_step_reads_from_the_device_once() -> None:
    """Whether a gradient is not finite. On a GPU the process waits for each value that it reads."""
    _, train_step = _scaled(scale=64.0)
    train_step.run_step(_batch(0))
    with StepCounts() as counts:
        train_step.run_step(_batch(1))
    assert counts.reads["cpu"] == 1


@pytest.mark.parametrize("reduction", ["ddp", "exact"])
def test_a_step_that_is_not_finite_is_skipped_and_counted(reduction: Any) -> None:
    state, train_step = _scaled(replace(_FP16, reduction=reduction, ema_decay=0.5), scale=2.0**40)
    before = parameters_of(state.model)
    train_step.run_step(_batch(0))
    assert torch.equal(parameters_of(state.model), before)
    assert (state.skipped_steps, state.step) == (1, 1)
    assert state.scaler is not None
    assert state.scaler.get_scale() == 2.0**39
    # Nothing of it is left behind: the next one is as if it were the first.
    state.scaler.update(64.0)
    fresh, other = _scaled(replace(_FP16, reduction=reduction, ema_decay=0.5), scale=64.0)
    fresh.step = 1
    train_step.run_step(_batch(1))
    other.run_step(_batch(1))
    assert state.skipped_steps == 1
    assert torch.equal(parameters_of(state.model), parameters_of(fresh.model))


# Workers that step alone


@pytest.mark.parametrize(
    ("first", "period", "steps", "expected"),
    [(None, 1, 4, [0, 1, 2, 3, 4]), (3, 2, 8, [0, 1, 2, 3, 5, 7, 8]), (0, 4, 9, [0, 4, 8, 9])],
)
def test_when_all_ranks_have_the_same_weights(first: int | None, period: int, steps: int, expected: list[int]) -> None:
    settings = replace(SETTINGS, steps=steps, simulated_workers=1, local_from_step=first, local_period=period)
    _, train_step = _start(settings, max_size=BATCH)
    assert [step for step in range(steps + 1) if train_step.weights_in_sync_after(step)] == expected
