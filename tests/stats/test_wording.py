import pytest

from pipeline.stats import mean_estimate
from pipeline.stats.comparisons import PooledDifference
from pipeline.stats.wording import count, percent, plural, points, pooled_sentence

_COUNTS = {"draws": 1, "seeds": 3}


@pytest.mark.parametrize(
    ("value", "text"), [(0.424, "+0.42"), (-0.1, "−0.10"), (-0.001, "+0.00"), (0.0, "+0.00"), (None, "–")]
)
def test_points_carry_their_sign(value: float | None, text: str) -> None:
    assert points(value) == text


def test_plain_numbers() -> None:
    assert (percent(0.9487), percent(None), count(50000), plural(1, "seed"), plural(3, "seed")) == (
        "94.87",
        "–",
        "50,000",
        "1 seed",
        "3 seeds",
    )


@pytest.mark.parametrize(
    ("differences", "says"),
    [
        (
            [1.0, 1.1, 0.9],
            "filtered against full: higher top-1, +1.00 percentage points (95 % interval +0.75 to +1.25; ",
        ),
        ([-1.0, -1.1, -0.9], "filtered against full: lower top-1, −1.00 percentage points"),
        ([1.0, -1.0, 0.3], "filtered against full: no clear difference in top-1, +0.10 percentage points"),
        ([1.0], "+1.00 percentage points of top-1 (n = 1 seed, each the mean over 2 settings): no interval, hence no"),
    ],
)
def test_the_sentence_claims_no_more_than_the_interval(differences: list[float], says: str) -> None:
    pooled = PooledDifference(
        control="full", estimate=mean_estimate(differences, 0.95), settings=2, draws=1, seeds=3, left_out=0
    )
    assert says in pooled_sentence(pooled, 0.95)


def test_the_sentence_says_what_is_missing() -> None:
    nothing = PooledDifference(control="random_uniform", estimate=None, settings=0, **_COUNTS, left_out=3)
    assert pooled_sentence(nothing, 0.9).startswith("filtered against random uniform: nothing to compare")
    some = PooledDifference(
        control="full", estimate=mean_estimate([1.0, 2.0], 0.9), settings=1, draws=1, seeds=3, left_out=3
    )
    assert pooled_sentence(some, 0.9).endswith("; 3 incomplete settings left out.")
    assert "90 % interval" in pooled_sentence(some, 0.9)


def test_draws_of_the_filter_are_the_replicates_where_there_are_several() -> None:
    estimate = mean_estimate([1.0, 1.1, 0.9], 0.95)
    found = PooledDifference(control="full", estimate=estimate, settings=2, left_out=0, draws=3, seeds=5)
    assert pooled_sentence(found, 0.95).endswith(
        "n = 3 draws of the filter, each the mean over 5 seeds and 2 settings)."
    )
