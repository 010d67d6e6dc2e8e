"""The gain of filtering against the batch size."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.replication import CLAIMS, RunRecord, gain_slopes
from pipeline.stats.hypothesis_tests import sign_flip_test
from tests.fixtures.claim_records import RULE, Level, made_trials, outcome

SIZES = [64, 256, 2048, 6272]
ARMS = ["full", "filtered", "random"]


def _trials(seeds: int = 6, level: Level = lambda t: 0.8, **axes: Any) -> list[RunRecord]:
    return made_trials(np.random.default_rng(0), level, seeds=seeds, **{"arm": ARMS, "batch_size": SIZES, **axes})


def _lines(trials: list[RunRecord], control: str, sizes: list[int], seeds: int) -> list[float]:
    """Each seed's slope by NumPy, in points per doubling."""
    top1 = {(t.arm, t.seed, t.batch_size): t.top1 for t in trials}
    return [
        float(np.polyfit(np.log2(sizes), [100 * (top1["filtered", s, b] - top1[control, s, b]) for b in sizes], 1)[0])
        for s in range(seeds)
    ]


@pytest.mark.parametrize("control", ["full", "random"])
def test_slopes_agree_with_numpy_and_scipy(control: str) -> None:
    trials = _trials()
    found, expected = gain_slopes(trials, RULE)[control], _lines(trials, control, SIZES, 6)
    assert (found.n, found.unit) == (6, "seed")
    assert found.mean == pytest.approx(float(np.mean(expected)))
    # Rounding to 10,000 test images adds next to nothing.
    assert found.p == pytest.approx(stats.ttest_1samp(expected, 0).pvalue, rel=1e-3)
    interval = tuple(stats.ttest_1samp(expected, 0).confidence_interval(0.95))
    assert (found.low, found.high) == pytest.approx(interval, rel=1e-3)
    assert found.sign_flip == sign_flip_test(expected)


def test_a_gain_that_is_the_same_at_all_sizes_has_no_slope() -> None:
    found = gain_slopes(_trials(level=lambda t: 0.8 + 0.03 * (t.arm == "filtered")), RULE)
    assert all(evidence.p > 0.05 for evidence in found.values())


def test_only_seeds_that_have_all_sizes_count() -> None:
    """As where a cheap size has more seeds; of a size at which runs diverged, it is the size that goes."""
    trials = [t for t in _trials(8) if t.batch_size == 64 or t.seed < 4]
    found = gain_slopes(trials, RULE)["random"]
    assert found.n == 4
    assert found.mean == pytest.approx(float(np.mean(_lines(trials, "random", SIZES, 4))))
    diverged = [t for t in _trials() if (t.arm, t.batch_size) != ("random", 6272) or t.seed == 0]
    found = gain_slopes(diverged, RULE)["random"]
    assert found.n == 6
    assert found.mean == pytest.approx(float(np.mean(_lines(diverged, "random", SIZES[:3], 6))))


def test_few_test_images_widen_the_interval() -> None:
    exact = gain_slopes(_trials(), RULE)["full"]
    rounded = gain_slopes([replace(t, n_images=50) for t in _trials()], RULE)["full"]
    assert rounded.high - rounded.low > 1.05 * (exact.high - exact.low)


def test_draws_of_the_filter_are_crossed_with_their_seeds() -> None:
    full = _trials(3, arm=["full"])
    found = gain_slopes([*full, *_trials(3, arm=["filtered", "random"], draw=range(3))], RULE)
    assert {control: (evidence.n, evidence.unit) for control, evidence in found.items()} == {
        "full": (3, "draw of the filter"),
        "random": (3, "draw of the filter"),
    }


def test_the_sentence_needs_both_controls_and_equal_steps() -> None:
    judge = CLAIMS["gain_by_batch"].evaluate
    trials = _trials(level=lambda t: 0.8 + (t.arm == "filtered") * 0.01 * float(np.log2(t.batch_size / 64)))
    assert outcome(judge(trials, RULE)) == "supported"
    assert judge([t for t in trials if t.arm != "random"], RULE) is None
    assert judge([replace(t, matched="epochs") for t in trials], RULE) is None
    assert set(gain_slopes([replace(t, matched="epochs") for t in trials], RULE)) == {"full", "random"}
    assert judge([t for t in trials if t.batch_size == 64], RULE) is None
