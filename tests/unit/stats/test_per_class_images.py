import numpy as np
import pytest

from pipeline.stats.comparisons import Comparison, comparisons
from pipeline.stats.per_class import correctness_differences, hierarchical_bootstrap, image_values
from pipeline.stats.runs import Run
from tests.fixtures.runs import PLAN, Draws, made_draws, made_runs

LABELS = np.repeat([0, 1, 2], 4)
NAMES = ("cat", "dog", "ship")


def correct_of(runs: list[Run]) -> np.ndarray:
    """(runs, 12): the filtered arm is right but for one cat; the others but for half of the dogs."""
    correct = np.ones((len(runs), len(LABELS)), dtype=bool)
    for row, run in enumerate(runs):
        correct[row, [0] if run.arm == "filtered" else [4, 5]] = False
    return correct


def against(runs: list[Run], control: str) -> Comparison:
    (found,) = (comparison for comparison in comparisons(runs, PLAN) if comparison.control == control)
    return found


def test_classes_are_compared_by_run_and_the_worst_may_differ() -> None:
    whole, incomplete = {"filtered": [0.9] * 3, "random": [0.8] * 3}, {"filtered": [0.9] * 3}
    runs = [*made_runs(whole, 32), *made_runs(incomplete, 64)][::-1]
    found = image_values(against(runs, "random"), correct_of(runs), LABELS, NAMES, 0.95)
    assert found is not None
    rows = [(row["class"], row["treated"], row["control"], row["estimate"]["mean"]) for row in found["classes"]]
    assert rows == [("cat", 0.75, 1, -25), ("dog", 1, 0.5, 50), ("ship", 1, 1, 0)]
    assert (found["worst"]["treated"], found["worst"]["control"]) == (0.75, 0.5)
    worst = found["worst"]["estimate"]
    assert (worst["n"], worst["mean"], worst["sd"]) == (3, 25, 0)
    # Seeds are alike, so that only what counts of few images leave open widens it.
    assert -10 < worst["low"] < 25 < worst["high"] < 60
    # Seeds are alike, so that images alone widen the interval.
    assert found["n_images"] == 12
    arm, control = (correct_of(made_runs({name: [0.9] * 3}))[None] for name in ("filtered", "random"))
    low, high = hierarchical_bootstrap(correctness_differences([(arm, control)]), confidence=0.95)
    assert (found["bootstrap"]["low"], found["bootstrap"]["high"]) == pytest.approx((100 * low, 100 * high))
    assert -30 < found["bootstrap"]["low"] < 100 / 12 < found["bootstrap"]["high"] < 45


def test_several_draws_of_the_filter_share_the_full_data() -> None:
    own: Draws = {"resnet18": [0.9, 0.9], "resnet18-r1": [0.9, 0.9]}
    runs = made_draws({"filtered": own, "full": {"resnet18": [0.8, 0.8]}})
    found = image_values(against(runs, "full"), correct_of(runs), LABELS, NAMES, 0.95)
    assert found is not None
    assert [row["estimate"]["mean"] for row in found["classes"]] == pytest.approx([-25, 50, 0])
    assert found["worst"]["estimate"]["n"] == 2


def test_a_class_without_test_images_is_not_there() -> None:
    runs = made_runs({"filtered": [0.9, 0.9], "random": [0.8, 0.8]})
    found = image_values(against(runs, "random"), correct_of(runs), np.where(LABELS == 1, 2, LABELS), NAMES, 0.95)
    assert found is not None
    assert [row["class"] for row in found["classes"]] == ["cat", "ship"]


def test_where_no_setting_is_complete_there_is_nothing_to_say() -> None:
    runs = made_runs({"filtered": [0.9, None], "random": [0.8, 0.8]})
    assert image_values(against(runs, "random"), correct_of(runs), LABELS, NAMES, 0.95) is None
