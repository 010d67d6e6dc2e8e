"""Margins and forgetting events: those of a plain count, whoever counts, from the first step on."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.batching import SampleStream
from pipeline.run_log import RunLog
from pipeline.training.dynamics import DynamicsTracker
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, TrainedRun, train
from tests.fixtures.training import ALONE, TINY, bright_images

_CLASSES = 3
_CPU = torch.device("cpu")
_Pass = tuple[Tensor, Tensor, Tensor, Tensor]


def _passes(members: np.ndarray, n_epochs: int, batch: int, seed: int) -> Iterator[_Pass]:
    """Yield the batches of a run: ids, epochs, targets and logits, some across two epochs."""
    stream, generator = SampleStream(members, seed), torch.Generator().manual_seed(seed)
    total = stream.n_train * n_epochs
    for start in range(0, total, batch):
        ids, epochs = (torch.from_numpy(own) for own in stream.samples(start, min(batch, total - start)))
        yield ids, epochs, ids % _CLASSES, 4 * torch.randn(len(ids), _CLASSES, generator=generator)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 130), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_they_are_those_of_a_plain_count(n_epochs: int, batch: int, seed: int) -> None:
    members = np.arange(6) != 4
    tracker = DynamicsTracker(6, n_epochs, _CPU)
    margins: list[list[float]] = [[] for _ in range(6)]
    for ids, epochs, targets, logits in _passes(members, n_epochs, batch, seed):
        tracker.update(ids, epochs, targets, logits)
        for row, target, own in zip(ids.tolist(), targets.tolist(), logits.tolist(), strict=True):
            margins[row].append(own[target] - max(own[:target] + own[target + 1 :]))
    dynamics = tracker.result()
    for row, history in enumerate(margins):
        right = [margin > 0 for margin in history]
        events = sum(before and not after for before, after in pairwise(right))
        expected = np.nan if not history else events if any(right) else np.inf
        np.testing.assert_equal(float(dynamics.forgetting[row]), float(expected))
        mean = np.mean(history) if history else np.nan
        np.testing.assert_allclose(dynamics.margin[row], mean, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 70), st.integers(2, 9), st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_neither_ranks_nor_an_interruption_change_a_bit(n_epochs: int, batch: int, seed: int, stop: int) -> None:
    members = np.ones(6, dtype=bool)
    straight, total = (DynamicsTracker(6, n_epochs, _CPU) for _ in range(2))
    ranks = [DynamicsTracker(6, n_epochs, _CPU) for _ in range(2)]
    for number, own in enumerate(_passes(members, n_epochs, batch, seed)):
        straight.update(*own)
        if number == stop:
            _gather(ranks, total)
            ranks = [DynamicsTracker(6, n_epochs, _CPU) for _ in range(2)]
            for rank, tracker in enumerate(ranks):
                tracker.load_state_dict(total.state_dict(), is_main=rank == 0)
        for rank, tracker in enumerate(ranks):
            tracker.update(*(values[rank::2] for values in own))
    _gather(ranks, total)
    expected, actual = straight.result(), total.result()
    assert expected.margin.tobytes() == actual.margin.tobytes()
    assert expected.forgetting.tobytes() == actual.forgetting.tobytes()


def _gather(ranks: list[DynamicsTracker], total: DynamicsTracker) -> None:
    """Load the sum of the ranks into `total`, as their `state_dict` would be with more processes than one."""
    states = [tracker.state_dict() for tracker in ranks]
    total.load_state_dict({name: sum(state[name] for state in states) for name in states[0]}, is_main=True)


def test_forgetting_events_of_known_histories() -> None:
    """Right and wrong by epoch, of labels forgotten twice, once, never, and never learned."""
    histories = ["RWRW", "WRRW", "WWRR", "WWWW"]
    tracker = DynamicsTracker(5, 4, _CPU)
    for epoch in range(4):
        right = torch.tensor([history[epoch] == "R" for history in histories])
        logits = torch.stack([right.float(), (~right).float()], dim=1)
        tracker.update(torch.arange(4), torch.full((4,), epoch), torch.zeros(4, dtype=torch.int64), logits)
    dynamics = tracker.result()
    np.testing.assert_array_equal(dynamics.forgetting, [2, 1, 0, np.inf, np.nan])
    np.testing.assert_array_equal(dynamics.margin, [0, 0, 0, -1, np.nan])


@pytest.mark.parametrize(("logits", "margin"), [([torch.nan] * 3, 0.0), ([-torch.inf, 0, 0], -(2.0**16))])
def test_logits_that_are_not_finite_are_never_correct(logits: list[float], margin: float) -> None:
    tracker = DynamicsTracker(1, 1, _CPU)
    tracker.update(torch.tensor([0]), torch.tensor([0]), torch.tensor([0]), torch.tensor([logits]))
    assert tracker.result().margin.tolist() == [margin]
    assert tracker.result().forgetting.tolist() == [np.inf]


def _train(members: np.ndarray, *, steps: int, batch: int) -> TrainedRun:
    run_settings = replace(TINY, steps=steps, batch_size=batch)
    pixels, labels = bright_images(len(members))
    images = load_images(pixels, run_settings, training=True, device=ALONE.device)
    data = TrainData(images, torch.from_numpy(labels), members)
    return train(run_settings, data, world=ALONE, log=RunLog.silent(), track_confidence=True)


def test_a_run_counts_every_image_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    update = DynamicsTracker.update

    def counting(tracker: DynamicsTracker, ids: Tensor, epochs: Tensor, targets: Tensor, logits: Tensor) -> None:
        counts.append(len(ids))
        update(tracker, ids, epochs, targets, logits)

    monkeypatch.setattr(DynamicsTracker, "update", counting)
    members = np.arange(24) % 3 != 0
    dynamics = _train(members, steps=10, batch=8).dynamics
    assert sum(counts) == 80
    assert dynamics is not None
    np.testing.assert_array_equal(np.isfinite(dynamics.margin), members)
    np.testing.assert_array_equal(np.isnan(dynamics.forgetting), ~members)
