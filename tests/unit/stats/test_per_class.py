"""Accuracy by class and of the worst class, the bootstrap, and single images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats import mean_estimate
from pipeline.stats.comparisons import Comparison, comparisons
from pipeline.stats.estimates import Estimate, rounding_sd
from pipeline.stats.per_class import (
    class_accuracies,
    class_differences,
    correctness_differences,
    hierarchical_bootstrap,
    image_values,
    worst_class_accuracy,
)
from pipeline.stats.replicates import replicate_estimate, shared_rounding
from pipeline.stats.runs import Run
from tests.fixtures.runs import PLAN, Draws, made_draws, made_runs


@given(st.integers(0, 2**32 - 1))
def test_class_accuracies_are_the_means_over_each_classs_images(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 2, 7], 30)
    correct = rng.random((2, 3, 30)) < 0.7
    expected = np.stack([correct[..., labels == label].mean(axis=-1) for label in np.unique(labels)], axis=-1)
    assert class_accuracies(correct, labels) == pytest.approx(expected)
    assert worst_class_accuracy(correct, labels) == pytest.approx(expected.min(axis=-1))


def test_more_than_255_correct_images_are_counted() -> None:
    assert class_accuracies(np.ones(1000, dtype=bool), np.zeros(1000, dtype=int)) == [1]


@pytest.fixture
def arms() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Treated (3, 4, images), control of the same shape, labels."""
    rng = np.random.default_rng(0)
    treated, control = rng.random((2, 3, 4, 60)) < np.array([0.8, 0.7])[:, None, None, None]
    return treated, control, np.arange(60) % 5


def estimate(differences: np.ndarray, *, settings: int = 1, shared: bool = False) -> Estimate:
    """Of one class of 12 images, from differences (draws, seeds), each a count of them in both arms."""
    blur = rounding_sd(1 / 12) * (2 / settings) ** 0.5 * (shared_rounding(len(differences)) if shared else 1)
    return replicate_estimate(differences, 0.9, rounding=blur)


def test_differences_pair_by_seed(arms: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    treated, control, labels = arms
    found = class_differences([(treated[:1], control[:1])], labels, 0.9)
    by_class = class_accuracies(treated[0], labels) - class_accuracies(control[0], labels)
    worst = worst_class_accuracy(treated[0], labels) - worst_class_accuracy(control[0], labels)
    assert found.classes == (0, 1, 2, 3, 4)
    assert found.estimates == tuple(estimate(column[None]) for column in by_class.T)
    assert found.worst == estimate(worst[None])


def test_draws_are_crossed_with_their_seeds(
    arms: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    treated, control, labels = arms
    found = class_differences([(treated, control[:1])], labels, 0.9)
    by_class = class_accuracies(treated, labels) - class_accuracies(control[:1], labels)
    assert found.estimates[2] == estimate(by_class[:, :, 2], shared=True)
    own = class_differences([(treated, control)], labels, 0.9)
    by_class = class_accuracies(treated, labels) - class_accuracies(control, labels)
    assert own.estimates[2] == estimate(by_class[:, :, 2])


def test_settings_are_averaged_run_by_run(arms: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    treated, control, labels = arms
    settings = [(treated[:1], control[:1]), (treated[1:2], control[1:2])]
    found = class_differences(settings, labels, 0.9)
    each = class_accuracies(treated[:2], labels) - class_accuracies(control[:2], labels)
    assert found.estimates == tuple(estimate(column[None], settings=2) for column in each.mean(axis=0).T)
    assert class_differences(settings[::-1] * 2, labels, 0.9).worst.mean == pytest.approx(found.worst.mean)


def test_runs_without_an_error_leave_the_interval_of_counts() -> None:
    """Where every run has all of a class's images right, its accuracy is not known better than to an image or so."""
    right, labels = np.ones((1, 3, 60), dtype=bool), np.arange(60) % 5
    found = class_differences([(right, right)], labels, 0.95).estimates[0]
    assert (found.mean, found.sd) == (0, 0)
    assert found.low is not None
    assert found.high is not None
    assert -2 / 12 < found.low < 0 < found.high < 2 / 12


def test_what_does_not_fit_is_refused(arms: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    treated, control, labels = arms
    whole, part = (treated, control), (treated[:, :3], control[:, :3])
    for settings in ([(treated, control[:, :3])], [(treated, control[:2])], [whole, part], []):
        with pytest.raises(ValueError, match="shape"):
            class_differences(settings, labels, 0.9)
    for correct in (treated.astype(float), treated[..., :-1], treated[..., :0]):
        with pytest.raises(ValueError, match="bool"):
            class_accuracies(correct, labels)


def test_differences_pair_runs_and_images() -> None:
    treated = np.array([[[True, True], [False, False]], [[True, False], [False, True]]])
    control = np.array([[[True, False], [True, False]]])
    expected = np.array([[[0, 1], [-1, 0]], [[0, 0], [-1, 1]]])
    assert correctness_differences([(treated, control)]).tolist() == expected.tolist()
    own = np.broadcast_to(control, treated.shape)
    halved = correctness_differences([(treated, own), (treated, treated)])
    assert halved.tolist() == (expected / 2).tolist()
    for wrong in (control.astype(int), control[:, :1]):
        with pytest.raises(ValueError, match="expected"):
            correctness_differences([(treated, wrong)])


def _width(differences: np.ndarray) -> float:
    low, high = hierarchical_bootstrap(differences, confidence=0.95)
    assert low <= differences.mean() <= high
    return high - low


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_factor_that_varies_widens_the_interval(axis: int) -> None:
    """As the percentile interval of that factor's means alone does; n of them have (n - 1)/n of their variance."""
    n = 40
    values = np.random.default_rng(axis).normal(0, 0.1, n)
    shape = [1, 1, 1]
    shape[axis] = n
    differences = np.broadcast_to(values.reshape(shape), [n if i == axis else 3 for i in range(3)])
    assert _width(differences) == pytest.approx(2 * 1.96 * values.std() / n**0.5, rel=0.1)


def test_images_cross_runs() -> None:
    """All runs fail on the same images: more runs do not make those images better known."""
    easier = np.where(np.random.default_rng(0).random(200) < 0.2, 1.0, 0.0)
    few, many = (np.broadcast_to(easier, (1, seeds, 200)) for seeds in (2, 20))
    assert _width(many) == pytest.approx(_width(few), rel=0.05)


def test_no_difference_has_no_width_and_a_seed_makes_it_repeatable() -> None:
    assert hierarchical_bootstrap(np.zeros((1, 3, 10)), confidence=0.9) == (0, 0)
    values = np.random.default_rng(0).integers(-1, 2, (2, 3, 50))
    found = [hierarchical_bootstrap(values, confidence=0.9, seed=seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_with_few_seeds_it_is_narrower_than_students_interval() -> None:
    seeds = np.array([-0.02, 0.0, 0.01, 0.03])
    student = mean_estimate(seeds, 0.95)
    assert student.low is not None
    assert student.high is not None
    assert _width(np.broadcast_to(seeds[:, None], (1, 4, 20))) < 0.7 * (student.high - student.low)


@pytest.mark.parametrize(("shape", "confidence"), [((3, 10), 0.95), ((1, 0, 10), 0.95), ((1, 3, 10), 1.0)])
def test_what_is_no_sample_is_refused(shape: tuple[int, ...], confidence: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        hierarchical_bootstrap(np.zeros(shape), confidence=confidence)


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
