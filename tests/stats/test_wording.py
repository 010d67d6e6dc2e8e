import pytest

from pipeline.stats.wording import count, p_value, percent, plural, points


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


def test_plain_numbers() -> None:
    assert (percent(0.9487), percent(None), count(50000), plural(1, "seed"), plural(3, "seed")) == (
        "94.87",
        "–",
        "50,000",
        "1 seed",
        "3 seeds",
    )
