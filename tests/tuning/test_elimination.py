"""Early elimination: the published example, hand-made boundaries, and what holds for any table of accuracies."""

from collections.abc import Sequence
from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from pipeline.tuning import Outcome, Tolerance, eliminate, lockstep, remaining, sequential

TENTH = Tolerance(amount=0.1, kind="absolute")

# Rand (2021) prints the accuracies of the example in a picture only. These are ours; they give every number of the
# text: in lockstep trial 3 stops after epoch 1, trial 2 after 2, trials 1 and 4 after 4, and trial 4 wins.
EXAMPLE = [
    [0.29, 0.54, 0.61, 0.65, 0.66, 0.67, 0.67, 0.68],
    [0.25, 0.42, 0.56, 0.66, 0.73, 0.77, 0.82, 0.84],
    [0.22, 0.56, 0.71, 0.80, 0.84, 0.85, 0.86, 0.86],
    [0.33, 0.57, 0.69, 0.76, 0.80, 0.82, 0.82, 0.84],
]

Table = NDArray[np.float64]

tolerances = st.builds(
    Tolerance, amount=st.sampled_from([0.0, 0.05, 0.1, 0.3]), kind=st.sampled_from(["absolute", "relative"])
)
# In hundredths, as measured accuracies are; boundaries and ties are then common.
tables = st.tuples(st.integers(1, 5), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.integers(20, 60).map(lambda hundredths: hundredths / 100))
)


@st.composite
def ordered_tables(draw: st.DrawFn) -> tuple[Table, list[int]]:
    """A table of accuracies with an order of its trials."""
    table = draw(tables)
    return table, draw(st.permutations(range(len(table))))


def test_example_in_lockstep_takes_11_epochs() -> None:
    outcome = lockstep(EXAMPLE, TENTH)
    assert outcome == Outcome(winner=3, epochs=(4, 2, 1, 4), eliminated_after=(4, 2, 1, None))
    assert outcome.total_epochs == 11


def test_example_in_sequence_takes_19_6_epochs_on_average() -> None:
    totals = [sequential(EXAMPLE, TENTH, order).total_epochs for order in permutations(range(4))]
    assert sum(totals) == 470
    assert round(fmean(totals), 1) == 19.6


@pytest.mark.parametrize(
    ("order", "epochs", "eliminated_after", "winner"),
    [
        # Trial 4 has nobody to beat and runs to the cap; 3 falls at once, 2 after two epochs, 1 after four.
        ((3, 2, 1, 0), (4, 2, 1, 8), (4, 2, 1, None), 3),
        # Trial 1 runs to the cap alone. Trial 3 leaves it behind at epoch 4 and runs on: more trials are to come.
        # Trial 4 eliminates 3 with its first epoch, trial 2 falls after two.
        ((0, 2, 3, 1), (8, 2, 8, 8), (4, 2, 1, None), 3),
        # Trial 3 outlives 1 and 2, until the first epoch of trial 4 eliminates it: 4 is the last and alone remains.
        ((2, 0, 1, 3), (4, 2, 8, 1), (4, 2, 1, None), 3),
    ],
)
def test_sequences_by_hand(
    order: Sequence[int], epochs: tuple[int, ...], eliminated_after: tuple[int | None, ...], winner: int
) -> None:
    expected = Outcome(winner=winner, epochs=epochs, eliminated_after=eliminated_after)
    assert sequential(EXAMPLE, TENTH, order) == expected


@pytest.mark.parametrize(
    ("accuracies", "kind", "stay"),
    [
        ([0.9, 0.8, 0.79], "absolute", [True, True, False]),
        ([0.8, 0.7], "absolute", [True, True]),  # 0.8 - 0.7 is 0.10000000000000009
        ([0.9, 0.81, 0.809], "relative", [True, True, False]),
        ([0.5, 0.44, 0.4], "absolute", [True, True, True]),
        ([0.5, 0.44, 0.4], "relative", [True, False, False]),
        ([0.0, 0.0], "relative", [True, True]),
        ([0.3], "relative", [True]),
    ],
)
def test_exactly_the_tolerance_below_the_best_stays(accuracies: list[float], kind: str, stay: list[bool]) -> None:
    tolerance = {"absolute": TENTH, "relative": Tolerance(amount=0.1, kind="relative")}[kind]
    assert remaining(accuracies, tolerance).tolist() == stay


def test_of_equals_the_first_wins() -> None:
    assert lockstep([[0.5, 0.6], [0.5, 0.7], [0.5, 0.7]], TENTH).winner == 1
    assert sequential([[0.5, 0.6], [0.5, 0.7], [0.5, 0.7]], TENTH, [2, 1, 0]).winner == 1


def test_accuracies_outside_0_to_1_are_refused() -> None:
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(AssertionError):
            lockstep([[0.5, value]], TENTH)


@given(table=tables, tolerance=tolerances)
def test_only_trials_in_the_race_are_trained(table: Table, tolerance: Tolerance) -> None:
    asked: list[tuple[int, int]] = []

    def measure(trials: Sequence[int], epoch: int) -> Table:
        asked.extend((trial, epoch) for trial in trials)
        return table[list(trials), epoch - 1]

    trials, cap = table.shape
    outcome = eliminate(measure, trials=trials, cap=cap, tolerance=tolerance)
    assert outcome == lockstep(table, tolerance)
    assert sorted(asked) == [(trial, epoch) for trial in range(trials) for epoch in range(1, outcome.epochs[trial] + 1)]


@given(case=ordered_tables(), tolerance=tolerances)
def test_lockstep_does_not_depend_on_the_order_of_trials(case: tuple[Table, list[int]], tolerance: Tolerance) -> None:
    table, order = case
    straight, permuted = lockstep(table, tolerance), lockstep(table[order], tolerance)
    assert permuted.epochs == tuple(straight.epochs[trial] for trial in order)
    assert permuted.eliminated_after == tuple(straight.eliminated_after[trial] for trial in order)
    ran = permuted.epochs[permuted.winner]
    assert table[order][permuted.winner, ran - 1] == table[straight.winner, ran - 1]


@given(case=ordered_tables(), tolerance=tolerances)
def test_bounds_of_any_run(case: tuple[Table, list[int]], tolerance: Tolerance) -> None:
    table, order = case
    trials, cap = table.shape
    for outcome in (lockstep(table, tolerance), sequential(table, tolerance, order)):
        assert all(1 <= epochs <= cap for epochs in outcome.epochs)
        assert outcome.total_epochs <= trials * cap
        assert outcome.eliminated_after[outcome.winner] is None
        pairs = zip(outcome.eliminated_after, outcome.epochs, strict=True)
        assert all(after is None or after <= epochs for after, epochs in pairs)


@given(table=tables, tolerance=tolerances)
def test_in_lockstep_trials_stop_at_their_elimination_and_the_others_together(
    table: Table, tolerance: Tolerance
) -> None:
    outcome = lockstep(table, tolerance)
    survivors = [trial for trial, after in enumerate(outcome.eliminated_after) if after is None]
    last = max(outcome.epochs)
    for trial, after in enumerate(outcome.eliminated_after):
        assert outcome.epochs[trial] == (last if after is None else after)
    assert last == table.shape[1] or survivors == [outcome.winner]
    assert all(table[outcome.winner, last - 1] >= table[trial, last - 1] for trial in survivors)


@given(case=ordered_tables(), tolerance=tolerances)
def test_the_first_of_a_sequence_runs_to_the_cap(case: tuple[Table, list[int]], tolerance: Tolerance) -> None:
    table, order = case
    if len(order) > 1:
        assert sequential(table, tolerance, order).epochs[order[0]] == table.shape[1]


@given(case=ordered_tables(), tolerance=tolerances)
def test_where_one_trial_always_leads_no_order_saves_over_lockstep(
    case: tuple[Table, list[int]], tolerance: Tolerance
) -> None:
    """Without such a leader a sequence can be cheaper and can have another winner, see below."""
    table, order = case
    table[0] = table.max(axis=0) + 0.01
    together, in_turn = lockstep(table, tolerance), sequential(table, tolerance, order)
    assert together.winner == in_turn.winner == 0
    assert sum(together.epochs) <= sum(in_turn.epochs)
    # The leader itself may come last, when another has already eliminated all but one.
    assert all(less <= more for less, more in zip(together.epochs[1:], in_turn.epochs[1:], strict=True))


def test_a_sequence_can_be_cheaper_where_the_lead_changes() -> None:
    """Trial 3 falls at epoch 1 before it can eliminate trial 2 at epoch 2, unless it runs first."""
    table = [[0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6], [0.65] + 7 * [0.55], [0.55, 0.75, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]]
    together, in_turn = lockstep(table, TENTH), sequential(table, TENTH, [2, 1, 0])
    assert (together.winner, together.epochs) == (0, (8, 8, 1))
    assert (in_turn.winner, in_turn.epochs) == (0, (1, 2, 8))


def test_a_sequence_can_have_another_winner_where_the_lead_changes() -> None:
    """Together, trial 3 loses to 2. In turn, 2 has lost to 1 before 3 comes and beats 1."""
    table = [[0.5, 0.9], [0.6, 0.75], [0.65, 0.6]]
    assert lockstep(table, TENTH) == Outcome(winner=1, epochs=(1, 2, 2), eliminated_after=(1, None, 2))
    in_turn = sequential(table, TENTH, [0, 1, 2])
    assert in_turn == Outcome(winner=2, epochs=(2, 2, 1), eliminated_after=(1, 2, None))
