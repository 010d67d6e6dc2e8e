"""Successive halving and Hyperband against the tables of the paper and a library's manual."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.tuning.scheduler import (
    Rung,
    SearchOutcome,
    TrialStep,
    hyperband,
    promoted,
    run_halving,
    successive_halving,
)


def _pairs(rungs: list[Rung]) -> list[tuple[int, int]]:
    return [(rung.trials, rung.epochs) for rung in rungs]


def test_brackets_of_81_epochs_by_thirds() -> None:
    """Algorithm 1 of Li et al. (2018) by hand: n = ceil(5 * 3^s / (s + 1))."""
    assert [_pairs(bracket) for bracket in hyperband(max_epochs=81, factor=3)] == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


def test_brackets_of_8_epochs_by_halves() -> None:
    """The table that mlr3hyperband's manual prints for r_min = 1, r_max = 8, eta = 2."""
    assert [_pairs(bracket) for bracket in hyperband(max_epochs=8, factor=2)] == [
        [(8, 1), (4, 2), (2, 4), (1, 8)],
        [(6, 2), (3, 4), (1, 8)],
        [(4, 4), (2, 8)],
        [(4, 8)],
    ]


def test_epochs_are_rounded_down_if_the_maximum_is_not_a_power() -> None:
    assert _pairs(successive_halving(trials=27, max_epochs=50, factor=3, halvings=3)) == [
        (27, 1),
        (9, 5),
        (3, 16),
        (1, 50),
    ]


def test_a_power_of_the_factor_has_all_its_brackets() -> None:
    """log(243) / log(3) is 4.999999999999999 in floating point."""
    assert len(hyperband(max_epochs=243, factor=3)) == 6


def _epochs_of(rungs: list[Rung]) -> int:
    """Over all trials; promoted trials continue from their state."""
    more = sum(rung.trials * (rung.epochs - before.epochs) for before, rung in pairwise(rungs))
    return rungs[0].trials * rungs[0].epochs + more


def _race(brackets: list[list[Rung]], accuracy: Callable[[TrialStep], float | None]) -> SearchOutcome:
    return run_halving(
        lambda turns: [accuracy(turn) for turn in turns], lambda trial, how: None, brackets=brackets
    )  # fmt: skip


def test_promoted_trials_continue_from_their_state() -> None:
    assert _epochs_of([Rung(trials=9, epochs=1), Rung(trials=3, epochs=3), Rung(trials=1, epochs=9)]) == 9 + 3 * 2 + 6
    outcome = _race([successive_halving(trials=9, max_epochs=9, factor=3, halvings=2)], lambda turn: turn.trial / 10)
    assert outcome.epochs == (1, 1, 1, 1, 1, 1, 3, 3, 9)
    assert outcome.eliminated_after == (1, 1, 1, 1, 1, 1, 3, 3, None)
    assert outcome.winner == 8


@pytest.mark.parametrize(("max_epochs", "factor"), [(8, 2), (27, 3), (10, 3), (1, 2)])
def test_brackets_take_the_epochs_of_their_schedule(max_epochs: int, factor: int) -> None:
    brackets = hyperband(max_epochs=max_epochs, factor=factor)
    trials = sum(bracket[0].trials for bracket in brackets)
    quality = np.random.default_rng(0).permutation(trials) / trials
    outcome = _race(brackets, lambda turn: float(quality[turn.trial]))
    assert outcome.total_epochs == sum(map(_epochs_of, brackets))
    assert outcome.winner == quality.argmax()


def test_a_bracket_continues_without_its_failed_trials() -> None:
    """Of four, the two best fail in their second epoch; a bracket of which all fail leaves the next alone."""
    bracket = successive_halving(trials=4, max_epochs=4, factor=2, halvings=1)
    outcome = _race([bracket], lambda turn: None if turn.trial >= 2 and turn.epoch == 2 else turn.trial / 10)
    assert outcome.failed == (False, False, True, True)
    assert outcome.epochs == (4, 4, 1, 1)
    assert outcome.winner == 1
    outcome = _race([bracket, bracket], lambda turn: None if turn.trial < 4 else turn.trial / 10)
    assert outcome.winner == 7


def test_if_the_last_promoted_trial_fails_the_next_best_wins() -> None:
    outcome = _race(
        [successive_halving(trials=9, max_epochs=9, factor=3, halvings=2)],
        lambda turn: None if turn == (8, 5) else turn.trial / 10,
    )
    assert outcome.failed == (False,) * 8 + (True,)
    assert outcome.epochs == (1, 1, 1, 1, 1, 1, 3, 3, 4)
    # Of its first rung two have not failed, of its second none: those six stay out, these two do not.
    assert outcome.eliminated_after == (1, 1, 1, 1, 1, 1, None, None, None)
    assert outcome.winner == 7


@given(data=st.data(), max_epochs=st.integers(1, 9), factor=st.integers(2, 3))
def test_there_is_no_winner_only_if_all_fail(data: st.DataObject, max_epochs: int, factor: int) -> None:
    brackets = hyperband(max_epochs=max_epochs, factor=factor)
    trials = sum(bracket[0].trials for bracket in brackets)
    fails_in = data.draw(st.lists(st.integers(1, max_epochs + 1), min_size=trials, max_size=trials))
    outcome = _race(brackets, lambda turn: None if turn.epoch == fails_in[turn.trial] else turn.trial / trials)
    well = [trial for trial in range(trials) if not outcome.failed[trial]]
    assert outcome.winner == max((one for one in well if outcome.eliminated_after[one] is None), default=None)
    assert (outcome.winner is None) == (not well)


def test_the_best_are_promoted_and_of_equals_the_first() -> None:
    assert promoted([0.3, 0.9, 0.5, 0.9], 1) == [1]
    assert promoted([0.3, 0.9, 0.5, 0.9], 3) == [1, 2, 3]
    with pytest.raises(AssertionError):
        promoted([0.3], 2)


@given(max_epochs=st.integers(1, 1000), factor=st.integers(2, 5))
def test_every_bracket_ends_at_the_cap_within_its_budget(max_epochs: int, factor: int) -> None:
    brackets = hyperband(max_epochs=max_epochs, factor=factor)
    for bracket in brackets:
        assert bracket[0].epochs >= 1
        assert bracket[-1].trials >= 1
        assert bracket[-1].epochs == max_epochs
        # The paper's budget of a bracket, (s_max + 1) R, counts each rung from its start: R / factor^s for each trial
        # of the first rung. The number of these is rounded up, by less than one.
        most = factor ** (len(bracket) - 1)
        assert (bracket[0].trials - 1) * len(bracket) < len(brackets) * most <= bracket[0].trials * len(bracket)
        spent = sum(rung.trials * rung.epochs for rung in bracket)
        assert spent * most < (len(brackets) * most + len(bracket)) * max_epochs
        for before, after in pairwise(bracket):
            assert after.trials == before.trials // factor
            assert after.epochs >= factor * before.epochs
