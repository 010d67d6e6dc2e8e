"""The best batch size against the rate, if it is outside the sizes tried, or if these are far apart."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pipeline.replication import CLAIMS, RunRecord
from tests.fixtures.claim_records import CRITERIA, Level, claims, grid, hardly_above, outcome


def _best_at(size: Callable[[float], float]) -> Level:
    """Lose 2 points times the squared distance, in doublings, from `size` (of a learning rate)."""
    return lambda record: 0.9 - 0.02 * (math.log2(record.batch_size) - math.log2(size(record.learning_rate))) ** 2


def _outcome(level: Level, sizes: Sequence[int], rates: Sequence[float], *, noise: float, seeds: int) -> str:
    made = grid(level, noise=noise, batch_size=sizes, learning_rate=rates)(np.random.default_rng(0), seeds)
    return outcome(CLAIMS["best_batch"].evaluate(made, CRITERIA))


@pytest.mark.parametrize("noise", [0.0, 0.004])
def test_a_best_size_beyond_the_sizes_tried_is_no_evidence(noise: float) -> None:
    """It moves from 2 to 22 images, where 32 are the fewest tried; and upwards out of what was tried."""
    assert _outcome(_best_at(lambda r: 220 * r), [32, 64, 128, 256], [0.01, 0.1], noise=noise, seeds=6) == (
        "not testable here"
    )
    assert _outcome(_best_at(lambda r: 1e4 * r), [8, 16, 32], [0.01, 0.1], noise=noise, seeds=6) == "not testable here"


@pytest.mark.parametrize("noise", [0.0, 0.004])
@pytest.mark.parametrize("sizes", [[64, 512, 4096], [8, 64, 512, 4096]])
def test_sizes_far_apart_contradict_nothing(noise: float, sizes: Sequence[int]) -> None:
    """It moves from 250 to 790, between which there is no size."""
    level = _best_at(lambda rate: 250 * (rate / 0.01) ** 0.5)
    assert _outcome(level, sizes, [0.01, 0.1], noise=noise, seeds=6) == "undecided"


def test_a_rate_with_its_best_at_an_end_leaves_the_others() -> None:
    sizes, rates = [16, 32, 64, 128, 256], [0.01, 0.05, 0.1, 0.2]
    assert _outcome(_best_at(lambda rate: 640 * rate), sizes, rates, noise=0.001, seeds=6) == "supported"
    constant_above = _best_at(lambda rate: 64 if rate > 0.01 else 2)
    assert _outcome(constant_above, sizes, rates, noise=0.001, seeds=6) == "undecided"


def test_one_network_does_not_contradict_hidden_sizes_of_another() -> None:
    def level(record: RunRecord) -> float:
        return _best_at(lambda rate: 64 if record.model == "resnet18" else 5 * (rate / 0.1))(record)

    axes: dict[str, Any] = {
        "batch_size": [16, 32, 64, 128, 256],
        "learning_rate": [0.1, 0.2],
        "model": ["resnet18", "resnet34"],
    }
    records = grid(level, noise=0.001, **axes)(np.random.default_rng(0), 6)
    alone = [record for record in records if record.model == "resnet18"]
    assert outcome(CLAIMS["best_batch"].evaluate(alone, CRITERIA)) == "contradicted"
    assert outcome(CLAIMS["best_batch"].evaluate(records, CRITERIA)) == "undecided"


def test_seeds_that_agree_on_a_grid_are_not_certain() -> None:
    level, sizes = _best_at(lambda rate: 64), [16, 32, 64, 128, 256]
    evidence = CLAIMS["best_batch"].evaluate(
        grid(level, noise=0.0, batch_size=sizes, learning_rate=[0.1, 0.2])(np.random.default_rng(0), 2), CRITERIA
    )
    assert evidence is not None
    assert evidence.low < -1 < 1 < evidence.high
    assert outcome(evidence) == "undecided"


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("n_sizes", [3, 4, 6])
def test_flat_curves_are_hardly_ever_taken_for_a_moving_best(seeds: int, n_sizes: int) -> None:
    def flat(_: RunRecord) -> float:
        return 0.9

    make = grid(flat, batch_size=[2**power for power in range(4, 4 + n_sizes)], learning_rate=[0.1, 0.2])
    assert claims("best_batch", make, 100, seeds)[0] <= hardly_above(CRITERIA.alpha, 100)
