"""Missing runs, as after divergence, and studies of other seeds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replication import CLAIMS, RunRecord
from pipeline.replication.claim_data import accuracy_grid, average_replicates
from tests.fixtures.claim_records import CRITERIA, RUN, grid, make_records, outcome


def _filtered_gains(record: RunRecord) -> float:
    return 0.9 + 0.02 * (record.arm == "filtered")


def _equal_epochs(seeds: int) -> list[RunRecord]:
    arms: dict[str, Any] = {"matched": ["epochs"], "batch_size": [64, 128, 256], "arm": ["full", "filtered"]}
    return make_records(np.random.default_rng(0), _filtered_gains, seeds=seeds, **arms)


def test_a_size_at_which_runs_diverged_is_left_out_and_counted() -> None:
    records = _equal_epochs(5)
    gone = [t for t in records if not (t.arm == "filtered" and t.batch_size == 256 and t.seed > 0)]
    evidence = CLAIMS["as_good_as_full"].evaluate(gone, CRITERIA)
    assert evidence is not None
    assert (evidence.n, evidence.settings, evidence.left_out) == (5, 2, 1)
    assert outcome(evidence) == "supported"


def test_a_pilot_of_one_seed_does_not_stop_a_study_of_five() -> None:
    pilot = [replace(record, study="pilot") for record in _equal_epochs(1)]
    evidence = CLAIMS["as_good_as_full"].evaluate(pilot + _equal_epochs(5), CRITERIA)
    assert evidence is not None
    assert (evidence.n, evidence.settings, evidence.left_out) == (5, 3, 3)


def test_a_curve_loses_the_size_that_diverged_and_no_seeds() -> None:
    axes: dict[str, Any] = {"batch_size": [16, 32, 64, 128, 256, 512], "learning_rate": [0.05, 0.1]}

    def level(record: RunRecord) -> float:
        return 0.9 - 0.02 * (math.log2(record.batch_size / 64) - math.log2(record.learning_rate / 0.05)) ** 2

    records = grid(level, noise=0.001, **axes)(np.random.default_rng(0), 5)
    gone = [t for t in records if not (t.batch_size == 512 and t.learning_rate == 0.1 and t.seed > 0)]
    evidence = CLAIMS["best_batch"].evaluate(gone, CRITERIA)
    assert evidence is not None
    assert evidence.n == 5


@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), min_size=1))
def test_what_is_left_of_a_grid_is_complete_and_its_own(cells: set[tuple[int, int, int]]) -> None:
    records = [
        replace(RUN, seed=seed, batch_size=2**size, learning_rate=2.0**rate, top1=(seed + 5 * size + 25 * rate) / 100)
        for seed, size, rate in cells
    ]
    evidence = accuracy_grid(records, "batch_size", "learning_rate")
    assert evidence.top1.shape == (len(evidence.seeds), *map(len, evidence.levels))
    assert evidence.top1.size > 0
    for (i, j, k), top1 in np.ndenumerate(evidence.top1):
        size, rate = math.log2(evidence.levels[0][j]), math.log2(evidence.levels[1][k])
        assert math.isclose(top1, (evidence.seeds[i] + 5 * size + 25 * rate) / 100)
    if len(cells) == 4 * 3 * 3:
        assert evidence.top1.size == len(cells)


@given(st.dictionaries(st.integers(0, 3), st.sets(st.tuples(st.integers(0, 2), st.integers(0, 4))), max_size=4))
def test_replicates_are_those_of_the_setting_with_most(cells: dict[int, set[tuple[int, int]]]) -> None:
    evidence = average_replicates({setting: dict.fromkeys(of, 0.5) for setting, of in cells.items()})
    if evidence is None:
        assert not any(cells.values()) or all(
            not set.intersection(*({s for d, s in of if d == draw} for draw in {d for d, _ in of}))
            for of in cells.values() if of
        )  # fmt: skip
        return
    assert evidence.settings + evidence.left_out == len(cells)
    assert evidence.settings >= 1
    assert (evidence.table == 0.5).all()
