import numpy as np
import pytest

from pipeline.stats import mean_estimate
from pipeline.stats.per_class import correctness_differences, hierarchical_bootstrap


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
