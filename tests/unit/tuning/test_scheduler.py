"""Schedules of a search: the published example, sequences by hand, and properties for any table of accuracies."""

from collections.abc import Sequence
from itertools import permutations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from pipeline.tuning.scheduler import SearchOutcome, Tolerance, TrialStatus, TrialStep, run_threshold_pruning, survivors

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
    lambda shape: arrays(
        np.float64,
        shape,
        elements=st.integers(20, 60).map(lambda hundredths: hundredths / 100),
        fill=st.nothing(),  # each is sampled separately; otherwise most tables would have one value
    )
)


@st.composite
def failing_tables(draw: st.DrawFn) -> Table:
    """NaN from the epoch on in which a trial fails, if it does."""
    table = draw(tables)
    trials, max_epochs = table.shape
    for trial in range(trials):
        table[trial, draw(st.integers(0, max_epochs - 1) | st.just(max_epochs)) :] = np.nan
    return table


@st.composite
def ordered_tables(draw: st.DrawFn, of: st.SearchStrategy[Table] = tables) -> tuple[Table, list[int]]:
    """A table of accuracies with an order of its trials."""
    table = draw(of)
    return table, draw(st.permutations(range(len(table))))


class Known:
    """Trials whose accuracies are known, NaN where they fail; records all calls."""

    def __init__(self, table: Sequence[Sequence[float]] | Table) -> None:
        self.table = np.asarray(table, dtype=np.float64)
        self.rounds: list[list[TrialStep]] = []
        self.endings: list[tuple[int, TrialStatus]] = []

    def measure(self, turns: Sequence[TrialStep]) -> list[float | None]:
        self.rounds.append(list(turns))
        values = [float(self.table[trial, epoch - 1]) for trial, epoch in turns]
        return [None if np.isnan(value) else value for value in values]

    def ended(self, trial: int, how: TrialStatus) -> None:
        self.endings.append((trial, how))

    def race(self, tolerance: Tolerance | None, *, max_concurrent: int) -> SearchOutcome:
        trials, max_epochs = self.table.shape
        return run_threshold_pruning(
            self.measure,
            self.ended,
            trials=trials,
            max_epochs=max_epochs,
            max_concurrent=max_concurrent,
            tolerance=tolerance,
        )


def together(table: Sequence[Sequence[float]] | Table, tolerance: Tolerance) -> SearchOutcome:
    return Known(table).race(tolerance, max_concurrent=len(table))


def in_turn(table: Sequence[Sequence[float]] | Table, tolerance: Tolerance, order: Sequence[int]) -> SearchOutcome:
    """One after another in `order`; trials numbered as in the table."""
    outcome = Known(np.asarray(table)[list(order)]).race(tolerance, max_concurrent=1)
    back = np.argsort(order)
    return SearchOutcome(
        winner=None if outcome.winner is None else order[outcome.winner],
        epochs=tuple(outcome.epochs[place] for place in back),
        eliminated_after=tuple(outcome.eliminated_after[place] for place in back),
        failed=tuple(outcome.failed[place] for place in back),
    )


def came_out(outcome: SearchOutcome) -> tuple[int | None, tuple[int, ...], tuple[int | None, ...]]:
    return outcome.winner, outcome.epochs, outcome.eliminated_after


def test_example_in_lockstep_takes_11_epochs() -> None:
    outcome = together(EXAMPLE, TENTH)
    assert came_out(outcome) == (3, (4, 2, 1, 4), (4, 2, 1, None))
    assert outcome.total_epochs == 11


def test_example_in_sequence_takes_19_6_epochs_on_average() -> None:
    totals = [in_turn(EXAMPLE, TENTH, order).total_epochs for order in permutations(range(4))]
    assert sum(totals) == 470
    assert round(fmean(totals), 1) == 19.6


@pytest.mark.parametrize(
    ("order", "epochs", "eliminated_after", "winner"),
    [
        # Trial 4 has no competitor and runs to the end; 3 falls at once, 2 after two epochs, 1 after four.
        ((3, 2, 1, 0), (4, 2, 1, 8), (4, 2, 1, None), 3),
        # Trial 1 runs to the end alone. Trial 3 leaves it behind at epoch 4 and runs on: more trials are to come.
        # Trial 4 prunes 3 with its first epoch, trial 2 falls after two.
        ((0, 2, 3, 1), (8, 2, 8, 8), (4, 2, 1, None), 3),
        # Trial 3 outlives 1 and 2, until the first epoch of trial 4 prunes it: 4 is the last and alone remains.
        ((2, 0, 1, 3), (4, 2, 8, 1), (4, 2, 1, None), 3),
    ],
)
def test_sequences_by_hand(
    order: Sequence[int], epochs: tuple[int, ...], eliminated_after: tuple[int | None, ...], winner: int
) -> None:
    assert came_out(in_turn(EXAMPLE, TENTH, order)) == (winner, epochs, eliminated_after)


def test_a_freed_slot_takes_the_next_trial() -> None:
    """With two trials at a time, trial 3 starts when 2 falls, is at its first epoch when 1 is at its second."""
    known = Known([[0.5, 0.6, 0.7], [0.3, 0.3, 0.3], [0.5, 0.4, 0.9]])
    outcome = known.race(TENTH, max_concurrent=2)
    assert known.rounds == [
        [TrialStep(0, 1), TrialStep(1, 1)],
        [TrialStep(0, 2), TrialStep(2, 1)],
        [TrialStep(0, 3), TrialStep(2, 2)],
    ]
    assert known.endings == [(1, "eliminated"), (2, "eliminated"), (0, "finished")]
    assert came_out(outcome) == (0, (3, 1, 2), (None, 1, 2))


def test_the_other_trials_continue_after_a_failed_one() -> None:
    known = Known([[0.5, np.nan], [0.5, 0.6], [np.nan, np.nan]])
    outcome = known.race(None, max_concurrent=2)
    assert outcome == SearchOutcome(
        winner=1, epochs=(1, 2, 0), eliminated_after=(None, None, None), failed=(True, False, True)
    )
    assert known.endings == [(0, "failed"), (1, "finished"), (2, "failed")]


def test_there_is_no_winner_if_all_fail() -> None:
    assert Known([[np.nan], [np.nan]]).race(TENTH, max_concurrent=2).winner is None


def test_trials_pruned_by_a_failed_one_are_active_again() -> None:
    """By hand: trial 2 puts out 1 and fails; the curve of trial 1 then stands again, and puts out trial 3."""
    known = Known([[0.5, 0.8], [0.92, np.nan], [0.3, 0.3]])
    outcome = known.race(TENTH, max_concurrent=1)
    assert came_out(outcome) == (0, (2, 1, 1), (None, None, 1))
    assert outcome.failed == (False, True, False)
    assert known.endings == [(0, "finished"), (1, "failed"), (2, "eliminated")]


def test_a_trial_stopped_by_a_failed_one_can_win() -> None:
    """By hand: trial 2 alone puts out 1 after an epoch, and fails; 3 never gets as far as 1 was."""
    known = Known([[0.8, 0.9, 0.9], [0.92, np.nan, np.nan], [0.85, 0.7, 0.75]])
    outcome = known.race(TENTH, max_concurrent=3)
    assert came_out(outcome) == (0, (1, 1, 3), (None, None, None))
    assert known.endings == [(0, "eliminated"), (1, "failed"), (2, "finished")]


@given(table=failing_tables(), max_concurrent=st.integers(1, 6))
def test_without_a_rule_all_run_to_the_last_epoch_or_fail(table: Table, max_concurrent: int) -> None:
    outcome = Known(table).race(None, max_concurrent=max_concurrent)
    assert outcome.epochs == tuple(np.isfinite(table).sum(axis=1))
    assert outcome.failed == tuple(np.isnan(table[:, -1]))
    assert outcome.winner == (None if all(outcome.failed) else np.nanargmax(table[:, -1]))


@given(table=failing_tables(), tolerance=tolerances, max_concurrent=st.integers(1, 6))
def test_only_trials_that_have_not_failed_prune_others_permanently(
    table: Table, tolerance: Tolerance, max_concurrent: int
) -> None:
    outcome = Known(table).race(tolerance, max_concurrent=max_concurrent)
    well = [trial for trial in range(len(table)) if not outcome.failed[trial]]
    for trial, after in enumerate(outcome.eliminated_after):
        if after is not None:
            there = [one for one in well if outcome.epochs[one] >= after]
            own = table[trial, after - 1]
            assert any(not survivors([own, table[one, after - 1]], tolerance)[0] for one in there)
    left = [trial for trial in well if outcome.eliminated_after[trial] is None]
    last = {trial: table[trial, outcome.epochs[trial] - 1] for trial in left}
    assert outcome.winner == max(left, key=last.__getitem__, default=None)
    assert (outcome.winner is None) == (not well)


def test_of_equals_the_first_wins() -> None:
    assert together([[0.5, 0.6], [0.5, 0.7], [0.5, 0.7]], TENTH).winner == 1


@given(table=failing_tables(), tolerance=tolerances, max_concurrent=st.integers(1, 6))
def test_every_trial_runs_its_epochs_once_and_in_order(table: Table, tolerance: Tolerance, max_concurrent: int) -> None:
    known = Known(table)
    outcome = known.race(tolerance, max_concurrent=max_concurrent)
    assert all(len(turns) <= max_concurrent for turns in known.rounds)
    for trial, ran in enumerate(outcome.epochs):
        own = [turn.epoch for turns in known.rounds for turn in turns if turn.trial == trial]
        assert own == list(range(1, ran + 1 + outcome.failed[trial]))
    assert sorted(trial for trial, _ in known.endings) == list(range(len(table)))


@given(table=tables, tolerance=tolerances)
def test_concurrent_trials_follow_the_rule_after_each_epoch(table: Table, tolerance: Tolerance) -> None:
    """Against the rule written out for trials that all start together and do not fail."""
    racing, epochs = np.arange(len(table)), [0] * len(table)
    pruned: list[int | None] = [None] * len(table)
    for epoch in range(1, table.shape[1] + 1):
        stay = survivors(table[racing, epoch - 1], tolerance)
        for trial, stays in zip(racing, stay, strict=True):
            epochs[trial] = epoch
            pruned[trial] = None if stays else epoch
        racing = racing[stay]
        if len(racing) == 1:
            break
    winner = racing[table[racing, epoch - 1].argmax()]
    assert came_out(together(table, tolerance)) == (winner, tuple(epochs), tuple(pruned))


@given(case=ordered_tables(), tolerance=tolerances)
def test_sequential_trials_follow_the_rule_against_earlier_ones(
    case: tuple[Table, list[int]], tolerance: Tolerance
) -> None:
    """Against the rule written out for trials of which each starts when the one before has ended, and none fails."""
    table, order = case
    racing: list[int] = []
    epochs: dict[int, int] = {}
    pruned: dict[int, int | None] = {}
    for place, trial in enumerate(order, start=1):
        racing.append(trial)
        for epoch in range(1, table.shape[1] + 1):
            epochs[trial] = epoch
            for other, stays in zip(racing, survivors(table[racing, epoch - 1], tolerance), strict=True):
                pruned[other] = None if stays else epoch
            racing = [other for other in racing if pruned[other] is None]
            if trial not in racing or (place == len(table) and racing == [trial]):
                break
    outcome = in_turn(table, tolerance, order)
    assert outcome.epochs == tuple(epochs[trial] for trial in range(len(table)))
    assert outcome.eliminated_after == tuple(pruned[trial] for trial in range(len(table)))
    best = max(racing, key=lambda one: table[one, -1]) if len(racing) > 1 else racing[0]
    assert outcome.winner == best


@given(case=ordered_tables(failing_tables()), tolerance=tolerances)
def test_lockstep_does_not_depend_on_the_order_of_trials(case: tuple[Table, list[int]], tolerance: Tolerance) -> None:
    table, order = case
    straight, permuted = together(table, tolerance), together(table[order], tolerance)
    assert permuted.epochs == tuple(straight.epochs[trial] for trial in order)
    assert permuted.eliminated_after == tuple(straight.eliminated_after[trial] for trial in order)
    assert (straight.winner is None) == (permuted.winner is None)
    if straight.winner is not None and permuted.winner is not None:
        ran, again = straight.epochs[straight.winner], permuted.epochs[permuted.winner]
        assert table[order][permuted.winner, again - 1] == table[straight.winner, ran - 1]


@given(case=ordered_tables(), tolerance=tolerances)
def test_no_order_saves_over_lockstep_where_one_trial_leads(
    case: tuple[Table, list[int]], tolerance: Tolerance
) -> None:
    """Without such a leader a sequence can be cheaper and can have another winner, see below."""
    table, order = case
    table[0] = table.max(axis=0) + 0.01
    side_by_side, sequence = together(table, tolerance), in_turn(table, tolerance, order)
    assert side_by_side.winner == sequence.winner == 0
    assert side_by_side.total_epochs <= sequence.total_epochs
    # The leader itself may come last, when another has already pruned all but one.
    assert all(less <= more for less, more in zip(side_by_side.epochs[1:], sequence.epochs[1:], strict=True))


def test_a_sequence_can_be_cheaper_where_the_lead_changes() -> None:
    """Trial 3 falls at epoch 1 before it can prune trial 2 at epoch 2, unless it runs first."""
    table = [[0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6], [0.65] + 7 * [0.55], [0.55, 0.75, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]]
    assert came_out(together(table, TENTH))[:2] == (0, (8, 8, 1))
    assert came_out(in_turn(table, TENTH, [2, 1, 0]))[:2] == (0, (1, 2, 8))


def test_a_sequence_can_have_another_winner_where_the_lead_changes() -> None:
    """Together, trial 3 loses to 2. In turn, 2 has lost to 1 before 3 comes and beats 1."""
    table = [[0.5, 0.9], [0.6, 0.75], [0.65, 0.6]]
    assert came_out(together(table, TENTH)) == (1, (1, 2, 2), (1, None, 2))
    assert came_out(in_turn(table, TENTH, [0, 1, 2])) == (2, (2, 2, 1), (1, 2, None))
