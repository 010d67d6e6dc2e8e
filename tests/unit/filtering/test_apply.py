"""The members of an ensemble are checked and seeded like single scorers."""

import contextlib
import re
from typing import Any

import numpy as np
import pytest

from pipeline.config.filter import FilterConfig
from pipeline.errors import InputError
from pipeline.filtering.apply import FilterContext, apply_filter, rule_for
from pipeline.scoring.base import ScorerInputs

_N = 60


def _inputs() -> ScorerInputs:
    points = np.random.default_rng(0).normal(size=(1, _N, 2))
    return ScorerInputs(labels=np.arange(_N) % 2, embeddings=points)


def _ensemble(*members: dict[str, Any]) -> FilterConfig:
    scorer = {"name": "ensemble", "scorers": members}
    return FilterConfig.model_validate({"scorer": scorer, "drop_fraction": 0.2})


def _keep(config: FilterConfig, replicate: int) -> np.ndarray:
    context = FilterContext(network="resnet18", class_names=["cat", "dog"], overrides={}, replicate=replicate)
    return apply_filter(_inputs(), config, context).keep


def test_a_replicate_moves_the_seeds_of_members() -> None:
    config = _ensemble({"name": "random", "seed": 1})
    moved = _ensemble({"name": "random", "seed": 3})
    assert (_keep(config, 0) != _keep(config, 2)).any()
    np.testing.assert_array_equal(_keep(config, 2), _keep(moved, 0))


def test_a_member_that_lacks_its_input_is_named() -> None:
    config = _ensemble({"name": "random"}, {"name": "self_confidence"})
    with pytest.raises(InputError) as refused:
        _keep(config, 0)
    assert refused.value.key == "filter.scorer.scorers[1]"
    assert {"self_confidence", "probabilities"} <= set(re.findall(r"\w+", str(refused.value)))


def _far_class() -> ScorerInputs:
    """Two compact classes that lie apart, and a small one whose images are each alone."""
    labels = np.repeat([0, 1, 2], [30, 30, 6])
    points = np.random.default_rng(0).normal(size=(66, 2)) + np.array([[0, 0], [20, 0], [0, 20]])[labels]
    points[labels == 2] *= 1000
    return ScorerInputs(labels=labels, embeddings=points[None])


@pytest.mark.parametrize(
    ("rule", "key", "fix"),
    [
        ({"eps": {"name": "tuned", "planted_fraction": 0.1}}, "filter.eps", "give a number above"),
        ({"drop_fraction": {"resnet18": 0.5, "resnet34": 0.1}}, "filter.drop_fraction.resnet18", "lower it"),
    ],
)
def test_an_emptied_class_is_told_the_rule_of_its_network(rule: dict[str, Any], key: str, fix: str) -> None:
    config = FilterConfig.model_validate({"scorer": {"name": "dbscan"}, **rule})
    context = FilterContext(network="resnet18", class_names=["cat", "dog", "yak"], overrides={})
    with pytest.raises(InputError) as refused:
        apply_filter(_far_class(), config, context)
    assert refused.value.key == key
    assert f"; {fix}" in str(refused.value)
    assert "{" not in str(refused.value)
    assert "planted_fraction" not in str(refused.value)


def test_tuned_eps_of_few_images_is_hardly_ever_that_of_chance() -> None:
    """Labels that say nothing about the place. Chance has an average precision above the planted share."""
    tuned = {"name": "tuned", "planted_fraction": 0.1}
    config = FilterConfig.model_validate({"scorer": {"name": "dbscan"}, "eps": tuned})
    accepted = 0
    for seed in range(20):
        points = np.random.default_rng(seed).normal(size=(1, 80, 2))
        with contextlib.suppress(InputError):
            rule_for(config, "resnet18", ScorerInputs(labels=np.arange(80) % 2, embeddings=points), None)
            accepted += 1
    assert accepted <= 3
