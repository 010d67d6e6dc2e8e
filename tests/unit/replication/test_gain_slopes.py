"""The gain of filtering against the batch size."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.replication import CLAIMS, RunRecord, gain_slopes
from pipeline.stats.hypothesis_tests import sign_flip_test
from tests.fixtures.claim_records import CRITERIA, Level, make_records, outcome

SIZES = [64, 256, 2048, 6272]
ARMS = ["full", "filtered", "random"]


def _records(seeds: int = 6, level: Level = lambda t: 0.8, **axes: Any) -> list[RunRecord]:
    return make_records(np.random.default_rng(0), level, seeds=seeds, **{"arm": ARMS, "batch_size": SIZES, **axes})


def _lines(records: list[RunRecord], control: str, sizes: list[int], seeds: int) -> list[float]:
    """Each seed's slope by NumPy, in points per doubling."""
    top1 = {(t.arm, t.seed, t.batch_size): t.top1 for t in records}
    return [
        float(np.polyfit(np.log2(sizes), [100 * (top1["filtered", s, b] - top1[control, s, b]) for b in sizes], 1)[0])
        for s in range(seeds)
    ]


@pytest.mark.parametrize("control", ["full", "random"])
def test_slopes_agree_with_numpy_and_scipy(control: str) -> None:
    records = _records()
    evidence, expected = gain_slopes(records, CRITERIA)[control], _lines(records, control, SIZES, 6)
    assert (evidence.n, evidence.unit) == (6, "seed")
    assert evidence.mean == pytest.approx(float(np.mean(expected)))
    # Rounding to 10,000 test images adds next to nothing.
    assert evidence.p == pytest.approx(stats.ttest_1samp(expected, 0).pvalue, rel=1e-3)
    interval = tuple(stats.ttest_1samp(expected, 0).confidence_interval(0.95))
    assert (evidence.low, evidence.high) == pytest.approx(interval, rel=1e-3)
    assert evidence.sign_flip == sign_flip_test(expected)


def test_a_gain_that_is_the_same_at_all_sizes_has_no_slope() -> None:
    evidence = gain_slopes(_records(level=lambda t: 0.8 + 0.03 * (t.arm == "filtered")), CRITERIA)
    assert all(evidence.p > 0.05 for evidence in evidence.values())


def test_only_seeds_that_have_all_sizes_count() -> None:
    """As if a cheap size had more seeds. A size at which runs diverged is removed before a seed."""
    records = [t for t in _records(8) if t.batch_size == 64 or t.seed < 4]
    evidence = gain_slopes(records, CRITERIA)["random"]
    assert evidence.n == 4
    assert evidence.mean == pytest.approx(float(np.mean(_lines(records, "random", SIZES, 4))))
    diverged = [t for t in _records() if (t.arm, t.batch_size) != ("random", 6272) or t.seed == 0]
    evidence = gain_slopes(diverged, CRITERIA)["random"]
    assert evidence.n == 6
    assert evidence.mean == pytest.approx(float(np.mean(_lines(diverged, "random", SIZES[:3], 6))))


def test_a_size_goes_at_which_one_run_of_either_arm_diverged() -> None:
    for arm in ("filtered", "random"):
        records = [
            replace(t, setting_diverged=(t.arm, t.batch_size) == (arm, 6272))
            for t in _records()
            if (t.arm, t.batch_size, t.seed) != (arm, 6272, 0)
        ]
        evidence = gain_slopes(records, CRITERIA)["random"]
        assert (evidence.n, evidence.batch_sizes) == (6, tuple(SIZES[:3]))
        assert evidence.mean == pytest.approx(float(np.mean(_lines(records, "random", SIZES[:3], 6))))


def test_few_test_images_widen_the_interval() -> None:
    exact = gain_slopes(_records(), CRITERIA)["full"]
    rounded = gain_slopes([replace(t, n_images=50) for t in _records()], CRITERIA)["full"]
    assert rounded.high - rounded.low > 1.05 * (exact.high - exact.low)


def test_draws_of_the_filter_are_crossed_with_their_seeds() -> None:
    full = _records(3, arm=["full"])
    evidence = gain_slopes([*full, *_records(3, arm=["filtered", "random"], draw=range(3))], CRITERIA)
    assert {control: (evidence.n, evidence.unit) for control, evidence in evidence.items()} == {
        "full": (3, "replicate of the filter"),
        "random": (3, "replicate of the filter"),
    }


def test_the_claim_needs_both_controls_and_equal_steps() -> None:
    evaluate = CLAIMS["gain_by_batch"].evaluate
    records = _records(level=lambda t: 0.8 + (t.arm == "filtered") * 0.01 * float(np.log2(t.batch_size / 64)))
    assert outcome(evaluate(records, CRITERIA)) == "supported"
    assert evaluate([t for t in records if t.arm != "random"], CRITERIA) is None
    assert evaluate([replace(t, matched="epochs") for t in records], CRITERIA) is None
    assert set(gain_slopes([replace(t, matched="epochs") for t in records], CRITERIA)) == {"full", "random"}
    assert evaluate([t for t in records if t.batch_size == 64], CRITERIA) is None
