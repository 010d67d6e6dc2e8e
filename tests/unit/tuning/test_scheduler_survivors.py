"""Survivors of an epoch, at boundary values."""

import pytest

from pipeline.tuning.scheduler import Tolerance, survivors


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
    tenth = {"absolute": Tolerance(amount=0.1, kind="absolute"), "relative": Tolerance(amount=0.1, kind="relative")}
    assert survivors(accuracies, tenth[kind]).tolist() == stay


def test_accuracies_outside_0_to_1_are_refused() -> None:
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(AssertionError):
            survivors([0.5, value], Tolerance(amount=0.1, kind="absolute"))
