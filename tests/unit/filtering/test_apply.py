"""The members of an ensemble are checked and seeded like single scorers."""

import re
from typing import Any

import numpy as np
import pytest

from pipeline.config.filter import FilterConfig
from pipeline.errors import InputError
from pipeline.filtering.apply import FilterContext, apply_filter
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
