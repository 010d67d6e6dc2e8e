"""Steps and images to a training loss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats.ratios import convergence, images_to_accuracy, images_to_loss
from pipeline.stats.runs import Run
from tests.fixtures.runs import made_run


def _with_history(run: Run, history: tuple[tuple[int, float | None], ...]) -> Run:
    return Run(**{**vars(run), "history": history})


def _falling(arm: str, seed: int, speed: float) -> Run:
    """The loss falls from 2 by `speed` each 1,000 images."""
    history = tuple((at, 2 - speed * (at - 50) / 1000) for at in range(100, 2001, 100))
    return _with_history(made_run(arm, seed, 0.9), history)


@given(
    slope=st.floats(1e-4, 1e-2), start=st.floats(1.5, 3), gaps=st.lists(st.integers(1, 500), min_size=8, max_size=20)
)
def test_a_straight_loss_is_crossed_where_the_line_is(slope: float, start: float, gaps: list[int]) -> None:
    """Whatever the records' places: each mean is the line's value in the middle of its stretch."""
    ends = np.cumsum([0, *gaps])
    means = start - slope * (ends[:-1] + ends[1:]) / 2
    target = float((means[0] + means[-1]) / 2)
    history = tuple((int(end), float(mean)) for end, mean in zip(ends[1:], means, strict=True))
    assert images_to_loss(history, target) == pytest.approx((start - target) / slope)


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ((), "never"),
        (((10, 2.0), (20, 1.5)), "never"),
        (((10, None), (20, 2.0), (30, None)), "never"),
        (((10, 0.5), (20, 0.4)), "at once"),
        (((10, 0.9),), "at once"),
        (((10, 0.9), (20, 1.1), (30, 0.9)), "at once"),
    ],
)
def test_unknown_step_has_a_reason(history: tuple[tuple[int, float | None], ...], found: str) -> None:
    assert images_to_loss(history, 1.0) == found


def test_the_first_crossing_counts() -> None:
    assert images_to_loss(((10, 2.0), (20, 0.0), (30, 2.0), (40, 0.0)), 1.0) == pytest.approx(10)


def test_twice_as_fast_takes_half_the_images() -> None:
    speeds = np.linspace(1.2, 1.4, 8)
    runs = [_falling("filtered", seed, 2 * speed) for seed, speed in enumerate(speeds)]
    runs += [_falling("random", seed, speed) for seed, speed in enumerate(speeds)]
    found = convergence(runs, "train_loss", 1.0, 0.05)
    (ratio,) = found["ratios"]
    assert (ratio["outcome"], ratio["n"], ratio["left_out"]) == ("lower", 8, 0)
    assert ratio["mean"] == pytest.approx(0.5)
    assert ratio["low"] <= 0.5 <= ratio["high"]
    arms = {row["arm"]: row for row in found["arms"]}
    assert arms["random"]["images"] == pytest.approx(2 * arms["filtered"]["images"])
    assert arms["random"]["steps"] == pytest.approx(arms["random"]["images"] / 32)


def test_a_run_that_never_arrives_takes_its_setting_with_it() -> None:
    runs = [_falling(arm, seed, 1.3) for arm in ("filtered", "random") for seed in range(3)]
    runs[4] = _falling("random", 1, 0.1)
    (ratio,) = convergence(runs, "train_loss", 1.0, 0.05)["ratios"]
    assert (ratio["mean"], ratio["left_out"], ratio["outcome"]) == (None, 1, "undecided")


def test_three_seeds_claim_nothing_however_clear() -> None:
    """As everywhere, the sign-flip test must agree, and cannot with so few."""
    runs = [_falling(arm, seed, speed) for arm, speed in (("filtered", 1.8), ("random", 1.2)) for seed in range(3)]
    (ratio,) = convergence(runs, "train_loss", 1.0, 0.05)["ratios"]
    assert ratio["outcome"] == "undecided"


@given(places=st.lists(st.integers(1, 10_000), min_size=2, max_size=20, unique=True), share=st.floats(0.01, 1))
def test_an_accuracy_on_a_line_is_reached_where_the_line_is(places: list[int], share: float) -> None:
    ordered = sorted(places)
    curve = [(at, at / 10_000) for at in ordered]
    # By rounding the last bit may lie beyond the curve's end.
    target = min(curve[0][1] + share * (curve[-1][1] - curve[0][1]), curve[-1][1])
    assert images_to_accuracy(curve, target) == pytest.approx(10_000 * target)


@pytest.mark.parametrize(
    ("curve", "found"),
    [((), "never"), (((10, 0.4),), "never"), (((10, 0.1), (20, 0.4)), "never"), (((10, 0.6), (20, 0.7)), "at once")],
)
def test_unknown_accuracy_has_a_reason(curve: tuple[tuple[int, float], ...], found: str) -> None:
    assert images_to_accuracy(curve, 0.5) == found


def test_the_end_of_a_run_counts_as_a_measurement() -> None:
    run = _with_history(made_run("filtered", 0, 0.6), ((500, 1.0), (1000, 0.5)))
    measured = Run(**{**vars(run), "accuracy": ((500, 0.4),)})
    (row,) = convergence([measured], "top1", 0.5, 0.05)["arms"]
    assert (row["reached"], row["images"]) == (1, pytest.approx(750))


def test_steps_are_those_of_runs_whose_batch_grew() -> None:
    """Of 2,000 images the first 1,000 in steps of 10, the others in steps of 32, the batch size of the runs."""
    steady = [_falling(arm, seed, 0.9) for arm in ("full", "random") for seed in range(3)]
    steps = tuple(round(at / 10) if at <= 1000 else round(100 + (at - 1000) / 32) for at, _ in steady[0].history)
    growing = [Run(**{**vars(run), "history_steps": steps}) for run in steady]
    one, other = (convergence(runs, "train_loss", 1.0, 0.05) for runs in (steady, growing))
    assert (one["batch_grew"], other["batch_grew"]) == (False, True)
    (images, *_), (grown, *_) = one["arms"], other["arms"]
    assert images["images"] == grown["images"] == pytest.approx(1000 / 0.9)
    assert images["steps"] == pytest.approx(images["images"] / 32)
    assert grown["steps"] == pytest.approx(100 + (images["images"] - 1000) / 32, rel=0.01)
