"""A step that is captured and replayed gives the bits of a plain step. Without a GPU a stand-in captures."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from pipeline.batching import GlobalBatch, RankBatch, merge_micro_batches, worker_slices
from pipeline.run_log import RunLog
from pipeline.training import step as step_module
from pipeline.training import step_graph
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState, start_state
from pipeline.training.step import TrainStep
from pipeline.training.step_graph import GraphCapture
from tests.fixtures.training import ALONE, TINY, random_train_loss

N, STEPS = 48, 6
SETTINGS = replace(
    TINY, network="small_cnn", batch_size=24, simulated_workers=4, steps=STEPS, schedule="cosine", warmup_steps=2,
    label_smoothing=0.1, clip_norm=1.0,
)  # fmt: skip


class _Capture:
    """Captures like a CUDA graph: replaying repeats the work on the same tensors, and writes to the same gradients."""

    def __init__(self, state: TrainState) -> None:
        self._parameters = list(state.model.parameters())
        self.captured = self.replayed = 0

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        self.captured += 1
        # Where a real graph writes.
        gradients = [torch.empty_like(parameter) for parameter in self._parameters]
        result = torch.empty(())

        def replay() -> None:
            self.replayed += 1
            for parameter in self._parameters:
                parameter.grad = None
            result.copy_(work())
            for parameter, gradient in zip(self._parameters, gradients, strict=True):
                if parameter.grad is not None:
                    gradient.copy_(parameter.grad)
                parameter.grad = None

        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        return replay, result


def _train(
    settings: TrainSettings,
    *,
    captures: bool,
    pass_size: int = 24,
    tracked: int = 0,
    wrap: Callable[[_Capture], GraphCapture] = lambda capture: capture,
    said: StringIO | None = None,
) -> tuple[TrainState, int]:
    """Train for `STEPS` steps; return the state, and how many steps were replayed."""
    train_loss = random_train_loss(N, dtype=torch.float32, label_smoothing=settings.label_smoothing)
    state = start_state(settings, ALONE, n_tracked_samples=tracked, n_tracked_epochs=STEPS if tracked else 0)
    capture = _Capture(state)
    workers = worker_slices(settings.batch_size, settings.simulated_workers)
    rank_batch = RankBatch(slices=workers, micro_batches=merge_micro_batches(workers, pass_size))
    pair = GlobalBatch(sample_ids=np.arange(2), epochs=np.zeros(2, dtype=np.int64))
    options = RunOptions(graph_capture=wrap(capture) if captures else None)
    step = TrainStep(
        settings, state, train_loss, batches={settings.batch_size: rank_batch}, track_from_step=STEPS // 2,
        world=ALONE, options=options, log=RunLog(None, said),
    )  # fmt: skip
    step.warm_up(pair)
    for number in range(STEPS):
        rng = np.random.default_rng(number)
        step.run_step(GlobalBatch(sample_ids=rng.permutation(N)[:24], epochs=np.full(24, number)))
        step.release_graph()
    return state, capture.replayed


def _assert_equal(one: TrainState, other: TrainState) -> None:
    for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.loss_sum, other.loss_sum)
    for a, b in zip(one.optimizer.state.values(), other.optimizer.state.values(), strict=True):
        assert all(torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name])) for name in a)


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        replace(SETTINGS, optimizer="adamw", optimizer_options={"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}),
        replace(SETTINGS, ema_decay=0.9),
    ],
    ids=["sgd", "adamw", "weight average"],
)
def test_replayed_steps_equal_plain_ones(settings: TrainSettings) -> None:
    replayed, n_replayed = _train(settings, captures=True)
    plain, n_plain = _train(settings, captures=False)

    _assert_equal(replayed, plain)
    assert (n_replayed, n_plain) == (STEPS - 1, 0)
    if plain.average is not None and replayed.average is not None:
        for a, b in zip(plain.average.parameters(), replayed.average.parameters(), strict=True):
            assert torch.equal(a, b)


def test_the_recorded_update_reads_the_learning_rate_of_each_step() -> None:
    """On a GPU the learning rate of SGD is a tensor; `STEPS` steps have different ones."""

    def on_device(optimizer: Optimizer, _: object) -> None:
        rate = torch.zeros((), dtype=torch.float64)
        for group in optimizer.param_groups:
            group["lr"] = rate

    with patch.object(step_module, "_set_up_lr", on_device):
        replayed, n_replayed = _train(SETTINGS, captures=True)
    plain, _ = _train(SETTINGS, captures=False)

    assert n_replayed == STEPS - 1
    _assert_equal(replayed, plain)


def test_tracked_steps_are_recorded_separately() -> None:
    replayed, n_replayed = _train(SETTINGS, captures=True, tracked=N)
    plain, _ = _train(SETTINGS, captures=False, tracked=N)

    # The first step of each kind is plain.
    assert n_replayed == STEPS - 2
    _assert_equal(replayed, plain)
    for tracker in ("confidence_tracker", "dynamics_tracker"):
        one, other = getattr(replayed, tracker).state_dict(), getattr(plain, tracker).state_dict()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("changes", "pass_size"),
    [
        ({}, 12),
        ({"reduction": "exact"}, 24),
        ({"noise_scale_steps": 1}, 24),
        ({"precision": "fp16"}, 24),
        pytest.param({"network": "torchvision/resnet18"}, 24, marks=pytest.mark.slow),
    ],
    ids=["two passes", "exact sums", "noise samples", "loss scaling", "networks of others"],
)
def test_other_steps_are_not_captured(changes: dict[str, object], pass_size: int) -> None:
    _, n_replayed = _train(replace(SETTINGS, **changes), captures=True, pass_size=pass_size)  # type: ignore[arg-type]

    assert n_replayed == 0


def test_without_memory_for_a_graph_the_steps_stay_plain() -> None:
    def without_memory(capture: _Capture) -> GraphCapture:
        def replace_by(work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
            capture(work)  # leaves gradients behind
            raise torch.OutOfMemoryError("CUDA out of memory")

        return replace_by

    said = StringIO()
    failed, n_replayed = _train(SETTINGS, captures=True, wrap=without_memory, said=said)
    plain, _ = _train(SETTINGS, captures=False)

    assert n_replayed == 0
    _assert_equal(failed, plain)
    (line,) = said.getvalue().splitlines()
    assert "24 images" in line


def test_a_graph_whose_memory_is_needed_is_captured_again() -> None:
    captures_made: list[_Capture] = []

    def keep(capture: _Capture) -> GraphCapture:
        captures_made.append(capture)
        return capture

    with patch.object(step_graph._StepGraph, "is_large", return_value=True):
        released, n_replayed = _train(SETTINGS, captures=True, wrap=keep)
    plain, _ = _train(SETTINGS, captures=False)

    assert n_replayed == captures_made[0].captured == STEPS - 1
    _assert_equal(released, plain)


def test_a_graph_that_leaves_too_little_memory_is_given_up() -> None:
    said = StringIO()
    with patch.object(step_graph._StepGraph, "fits_memory", return_value=False):
        given_up, n_replayed = _train(SETTINGS, captures=True, said=said)
    plain, _ = _train(SETTINGS, captures=False)

    assert (n_replayed, len(said.getvalue().splitlines())) == (0, 1)
    _assert_equal(given_up, plain)


def test_another_error_while_capturing_ends_the_run() -> None:
    def failing(_: _Capture) -> GraphCapture:
        def replace_by(work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
            raise RuntimeError("operation not permitted when stream is capturing")

        return replace_by

    with pytest.raises(RuntimeError, match="capturing"):
        _train(SETTINGS, captures=True, wrap=failing)
