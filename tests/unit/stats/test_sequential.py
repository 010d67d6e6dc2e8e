"""Sequential verdicts: levels, the look that decides, and the seeds that are still needed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipeline.stats.sequential import (
    SequentialDecision,
    SequentialDesign,
    decide,
    first_outcomes,
    look_levels,
    seeds_needed,
)

LOOKS = (6, 8, 10, 12)
DESIGN = SequentialDesign(looks=LOOKS, margin=0.003, alpha=0.05)
STUDIES = 20_000


def _hardly_above(nominal: float, n: int) -> float:
    return nominal + 4 * math.sqrt(nominal * (1 - nominal) / n)


def _normal(shift: float = 0.0, spread: float = 0.0025, studies: int = STUDIES, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, spread, (studies, LOOKS[-1]))


def _decide(differences: np.ndarray) -> SequentialDecision:
    return decide(DESIGN, differences[:, None])


def test_levels_of_four_looks_from_six_seeds_on() -> None:
    """The levels of an independent simulation."""
    assert look_levels(LOOKS, 0.05) == pytest.approx((0.018, 0.020), abs=0.0007)


def test_one_look_has_the_whole_level() -> None:
    assert look_levels((9,), 0.05) == (0.05, 0.05)


@pytest.mark.parametrize(("looks", "alpha"), [((4, 6), 0.05), ((6, 8, 10), 0.01), ((3, 4, 5, 6), 0.1)])
def test_levels_lie_between_bonferroni_and_the_whole(looks: tuple[int, ...], alpha: float) -> None:
    for level in look_levels(looks, alpha):
        assert 0.9 * alpha / len(looks) < level < alpha


def test_a_small_alpha_leaves_levels_above_zero() -> None:
    for level in look_levels(LOOKS, 0.0001):
        assert 0.00001 < level < 0.0001


@pytest.mark.parametrize("shift", [0.0, -0.003, 0.003])
def test_false_claims_are_as_rare_as_stated(shift: float) -> None:
    found, _ = first_outcomes(DESIGN, _normal(shift))
    false = {0.0: ["helps", "hurts"], -0.003: ["equivalent", "helps"], 0.003: ["equivalent", "hurts"]}[shift]
    assert np.isin(found, false).mean() <= _hardly_above(0.05, STUDIES)


def test_an_interval_read_at_the_stop_covers_as_often_as_stated() -> None:
    """The repeated interval of each look, of confidence 1 - level, holds at all looks at once."""
    values = _normal(0.002)
    missed = np.zeros(len(values), dtype=bool)
    for n in LOOKS:
        part = values[:, :n]
        half = stats.t.isf(DESIGN.levels.difference / 2, n - 1) * part.std(axis=1, ddof=1) / n**0.5
        missed |= np.abs(part.mean(axis=1) - 0.002) > half
    assert missed.mean() <= _hardly_above(0.05, len(values))


def test_clear_differences_stop_at_the_first_look_others_go_on() -> None:
    rng = np.random.default_rng(1)
    assert _decide(0.01 + 1e-4 * rng.normal(size=12)) == SequentialDecision(outcome="helps", seeds=6)
    assert _decide(-0.01 + 1e-4 * rng.normal(size=12)) == SequentialDecision(outcome="hurts", seeds=6)
    assert _decide(1e-4 * rng.normal(size=12)) == SequentialDecision(outcome="equivalent", seeds=6)
    assert _decide(0.01 * rng.normal(size=12)) == SequentialDecision(outcome="undecided", seeds=12)


@given(st.integers(0, 2**32 - 1), st.floats(-0.006, 0.006))
def test_seeds_after_the_stop_change_nothing(seed: int, shift: float) -> None:
    values = _normal(shift, 0.002, 1, seed)[0]
    found = _decide(values)
    other = values.copy()
    other[found.seeds :] += 1.0
    assert _decide(other[: found.seeds]) == found
    if found.outcome != "undecided":
        assert _decide(other) == found


@given(st.integers(0, 2**32 - 1), st.floats(-0.006, 0.006))
def test_a_mirrored_study_has_the_mirrored_verdict(seed: int, shift: float) -> None:
    values = _normal(shift, 0.002, 1, seed)[0]
    there, back = _decide(values), _decide(-values)
    assert back.outcome == {"helps": "hurts", "hurts": "helps"}.get(there.outcome, there.outcome)
    assert back.seeds == there.seeds


@given(st.integers(0, 2**32 - 1))
def test_one_study_and_many_at_once_agree(seed: int) -> None:
    values = _normal(0.002, 0.002, 20, seed)
    found, used = first_outcomes(DESIGN, values)
    assert [_decide(row) for row in values] == [
        SequentialDecision(outcome=outcome, seeds=int(n)) for outcome, n in zip(found.tolist(), used, strict=True)
    ]


def test_an_undecided_study_uses_the_seeds_of_the_last_look() -> None:
    unclear = 0.01 * np.array([[1.0, -1.0] * 6])
    outcome, used = first_outcomes(DESIGN, unclear)
    assert (outcome.tolist(), used.tolist()) == (["undecided"], [DESIGN.looks[-1]])


def test_seeds_between_two_looks_wait_for_the_next() -> None:
    values = 0.01 * np.random.default_rng(3).normal(size=12)
    assert _decide(values[:5]) == SequentialDecision(outcome="undecided", seeds=0)
    assert _decide(values[:7]) == _decide(values[:6]) == SequentialDecision(outcome="undecided", seeds=6)


def test_a_setting_that_lacks_a_run_is_left_out_from_its_look_on() -> None:
    values = np.column_stack([np.full(12, 0.01), np.full(12, -0.01)]) + 1e-4 * _normal(0, 1, 12, 5)[:, :2]
    assert decide(DESIGN, values).outcome == "equivalent"
    values[2, 1] = np.nan
    assert decide(DESIGN, values) == SequentialDecision(outcome="helps", seeds=6)
    values[2, 0] = np.nan
    assert decide(DESIGN, values) == SequentialDecision(outcome="undecided", seeds=12)


def test_accuracies_that_round_alike_are_not_sure() -> None:
    """Six times one image of 360 more is no proof of equivalence within 0.03 points."""
    values = np.full((12, 1), 1 / 360)
    narrow = SequentialDesign(looks=LOOKS, margin=0.0031, alpha=0.05)
    assert decide(narrow, values).outcome == "equivalent"
    assert decide(narrow, values, step=1 / 360).outcome != "equivalent"


def test_a_study_needs_seeds_up_to_the_look_that_decides() -> None:
    rng = np.random.default_rng(2)
    unclear, clear = 0.01 * rng.normal(size=(12, 1)), 0.01 + 1e-4 * rng.normal(size=(12, 1))
    assert [seeds_needed(DESIGN, unclear[:n]) for n in (0, 3, 6, 7, 8, 10, 12)] == [6, 6, 8, 8, 10, 12, 12]
    assert [seeds_needed(DESIGN, clear[:n]) for n in (0, 5, 6, 12)] == [6, 6, 6, 6]


@pytest.mark.parametrize("wrong", [(), (6, 6), (8, 6), (1, 4)])
def test_looks_that_do_not_grow_are_refused(wrong: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="looks"):
        SequentialDesign(looks=wrong, margin=0.003, alpha=0.05)
