import pytest

from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import (
    aligned_lines,
    count,
    number,
    p_equals,
    p_value,
    percent,
    plain_number,
    plural,
    points,
    points_interval,
    span,
)


@pytest.mark.parametrize(
    ("value", "text"), [(0.424, "+0.42"), (-0.1, "−0.10"), (-0.001, "+0.00"), (0.0, "+0.00"), (None, "–")]
)
def test_points_carry_their_sign(value: float | None, text: str) -> None:
    assert points(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (0.0423, "0.042"), (0.00012, "0.00012"), (1e-9, "< 0.0001"), (None, "–")]
)
def test_p_values_have_two_digits(value: float | None, text: str) -> None:
    assert p_value(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.042, "p = 0.042"), (1e-5, "p < 0.0001"), (1.0, "p = 1")])
def test_a_p_value_has_one_sign(value: float, text: str) -> None:
    assert p_equals(value) == text


def test_plain_numbers() -> None:
    assert (percent(0.9487), percent(None), count(50000), plural(1, "seed"), plural(3, "seed")) == (
        "94.87",
        "–",
        "50,000",
        "1 seed",
        "3 seeds",
    )


def test_a_span_is_one_number_where_its_ends_read_alike() -> None:
    assert (span((9766, 9766), count), span((9100, 9766), count)) == ("9,766", "9,100 to 9,766")
    assert (span((2.0, 2.00001), number), span(None, number)) == ("2", "–")


@pytest.mark.parametrize(("n", "text"), [(1, "n = 1, no interval"), (3, "no interval")])
def test_draws_of_a_single_seed_without_interval_are_not_one(n: int, text: str) -> None:
    """As of three draws against the one run of the full arm."""
    assert points_interval(Estimate(mean=0.1, sd=None, low=None, high=None, n=n)) == text


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("name", "n", "note"), ("a", "1,000", ""), ("ab", "7", "x")]
    assert list(aligned_lines(rows)) == ["name      n  note", "   a  1,000", "  ab      7     x"]
    assert list(aligned_lines(rows, left=1)) == ["name      n  note", "a     1,000", "ab        7     x"]
    assert list(aligned_lines(rows, left=3)) == ["name  n      note", "a     1,000", "ab    7      x"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.04321, "0.04321"), (999.4, "999.4"), (999.96, "1,000"), (1000.4, "1,000"), (12345.6, "12,346")],
)
def test_large_numbers_are_whole_and_have_no_power_of_ten(value: float | None, text: str) -> None:
    assert plain_number(value) == text
