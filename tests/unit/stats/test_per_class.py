import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats.estimates import Estimate, rounding_sd
from pipeline.stats.per_class import class_accuracies, class_differences, worst_class_accuracy
from pipeline.stats.replicates import level_estimate


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


def estimate(differences: np.ndarray, *, settings: int = 1) -> Estimate:
    """Of one class of 12 images, from differences (draws, seeds), each a count of them in both arms."""
    blur = rounding_sd(1 / 12) * (2 / settings) ** 0.5
    return level_estimate(differences, 0.9, rounding=blur)


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
    assert found.estimates[2] == estimate(by_class[:, :, 2])
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
