"""The mean probability of labels in training: exact sums, whoever counts them, and late passes alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from pipeline.durations import BatchSizes
from pipeline.run_log import RunLog
from pipeline.training.dynamics import ConfidenceTracker, first_tracked_step
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, TrainedRun, train
from tests.fixtures.training import ALONE, TINY, bright_images

_N, _CLASSES = 6, 3
_CPU = torch.device("cpu")


def _passes(seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Batches of ids, targets and logits; ids may repeat within one, and the last image is in none."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, _N - 1, (5,), generator=generator) for _ in range(4)]
    return [(own, own % _CLASSES, 9 * torch.randn(5, _CLASSES, generator=generator)) for own in ids]


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
def test_means_are_those_of_the_softmax_and_nan_for_unseen_images(seed: int) -> None:
    track = ConfidenceTracker(_N, _CPU)
    sure: list[list[float]] = [[] for _ in range(_N)]
    for ids, targets, logits in _passes(seed):
        track.update(ids, targets, logits)
        for row, target, own in zip(ids.tolist(), targets.tolist(), logits, strict=True):
            sure[row].append(float(own.double().softmax(0)[target]))
    expected = np.array([float(np.mean(values)) if values else np.nan for values in sure])
    np.testing.assert_allclose(track.result().astype(np.float64), expected, atol=1e-6)
    assert np.isnan(track.result()[_N - 1])


@given(st.integers(0, 2**32 - 1), st.permutations(range(4)), st.integers(0, 4))
def test_no_order_and_no_interruption_changes_a_bit(seed: int, order: list[int], break_at: int) -> None:
    batches, straight, other = _passes(seed), ConfidenceTracker(_N, _CPU), ConfidenceTracker(_N, _CPU)
    for batch in batches:
        straight.update(*batch)
    for count, index in enumerate(order):
        if count == break_at:
            saved, other = other.state_dict(), ConfidenceTracker(_N, _CPU)
            other.load_state_dict(saved, is_main=True)
        other.update(*batches[index])
    assert straight.result().tobytes() == other.result().tobytes()


@given(st.integers(1, 10_000), st.integers(1, 5_000), st.integers(1, 600))
def test_tracking_covers_half_the_run_and_two_epochs_if_possible(steps: int, n_train: int, batch: int) -> None:
    first = first_tracked_step(steps, n_train, BatchSizes(final=batch))
    assert 0 <= first <= steps // 2
    assert first == 0 or (steps - first) * batch >= 2 * n_train


def _train(steps: int, members: NDArray[np.bool_], **options: Any) -> TrainedRun:
    settings = replace(TINY, steps=steps, batch_size=8)
    pixels, labels = bright_images(len(members))
    images = load_images(pixels, settings, training=True, device=ALONE.device)
    arguments: dict[str, Any] = {"world": ALONE, "log": RunLog.silent(), **options}
    return train(settings, TrainData(images, torch.from_numpy(labels), members), **arguments)


def test_every_image_of_every_step_is_tracked() -> None:
    members = np.arange(24) % 3 != 0
    actual = _train(8, members, track_confidence=True).confidence
    assert actual is not None
    np.testing.assert_array_equal(np.isfinite(actual), members)
    assert actual[members].min() > 0
    assert actual[members].max() < 1


def test_tracking_changes_no_weight() -> None:
    members = np.ones(24, dtype=np.bool_)
    watched, plain = _train(5, members, track_confidence=True), _train(5, members)
    assert plain.confidence is None
    for own, other in zip(watched.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("logits", [[torch.nan] * 3, [torch.inf, 0, 0]])
def test_logits_that_are_not_finite_have_no_confidence(logits: list[float]) -> None:
    track = ConfidenceTracker(1, _CPU)
    track.update(torch.tensor([0]), torch.tensor([0]), torch.tensor([logits]))
    assert track.result().tolist() == [0.0]
