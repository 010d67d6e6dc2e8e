"""How suddenly accuracy falls, wherever the best batch size lies."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from pipeline.replication import CLAIMS, RunRecord
from pipeline.replication.batch_size_claims import doublings_apart, steepest_falls
from tests.fixtures.claim_records import CRITERIA, Level, claims, grid, hardly_above

NETWORKS = ["resnet18", "resnet34", "resnet50", "resnet101"]
SIZES = [16, 32, 64, 128, 256, 512]
UNEVEN = [512, 1024, 2048, 4096, 6272, 8192, 10368, 16384, 20480]


def _same_slopes(large_best_at: float, start: int) -> Level:
    """2 points a doubling on either side of the best size; small networks have theirs two doublings up."""

    def level(record: RunRecord) -> float:
        best = large_best_at if record.model in ("resnet50", "resnet101") else 2
        return 0.9 - 0.02 * abs(math.log2(record.batch_size / start) - best)

    return level


@pytest.mark.parametrize("large_best_at", [1, 3])
@pytest.mark.parametrize(("sizes", "noise"), [(SIZES, 0.002), (UNEVEN, 0.004)])
def test_where_the_best_size_lies_tells_nothing(large_best_at: int, sizes: list[int], noise: float) -> None:
    make = grid(_same_slopes(large_best_at, sizes[0]), noise=noise, batch_size=sizes, model=NETWORKS)
    assert sum(claims("sudden_drop", make, 100, seeds=5)) <= hardly_above(CRITERIA.alpha, 100)


def test_a_sudden_drop_is_found_wherever_it_lies() -> None:
    falls: Mapping[str, float] = {"resnet18": 0.02, "resnet50": 0.06}

    def level(record: RunRecord) -> float:
        best = {"resnet18": 1, "resnet50": 2}[record.model]
        return 0.9 - falls[record.model] * max(0.0, math.log2(record.batch_size / 16) - best)

    assert claims("sudden_drop", grid(level, batch_size=SIZES, model=["resnet18", "resnet50"]), 20, seeds=4)[0] > 0.8


def test_one_size_beyond_the_best_is_too_few() -> None:
    level = _same_slopes(1, 16)
    records = grid(level, noise=0.0, batch_size=SIZES[:4], model=NETWORKS)(np.random.default_rng(0), 5)
    assert CLAIMS["sudden_drop"].evaluate(records, CRITERIA) is None


def test_the_falls_are_per_doubling_in_windows_of_one_length() -> None:
    top1 = np.array([[0.9, 0.8, 0.75, 0.3], [0.8, 0.9, 0.85, 0.65]])
    evidence = steepest_falls(top1, np.array([4.0, 5.0, 7.0, 8.0]))
    assert evidence is not None
    # Of the first network the 45 points lie one size further than the second one reaches.
    np.testing.assert_allclose(evidence, [0.1, 0.2])
    assert doublings_apart(np.log2(UNEVEN)) == [0, 1, 2, 3, 5, 7]
