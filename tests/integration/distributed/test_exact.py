"""`reduction: exact` gives equal bits for every number of processes, bucket size and collective, by real torchrun."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.distributed.launches import assert_equal_bits, different_bits, launch

pytestmark = pytest.mark.timeout(1200)

Results = Mapping[int, Mapping[str, Any]]

CASES = (
    "resnet18 sgd",
    "small_cnn sgd",
    "small_cnn lamb",
    "small_cnn small buckets",
    "small_cnn by node",
    "small_cnn one message",
    "small_cnn interrupted",
    "small_cnn growing",
    "small_cnn muon bf16",
)
QUICK, SLOW = (1, 3), (2, 4, 6)
SHARED = pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in SLOW)])


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results by number of processes; the slow ones only where a slow test runs."""
    folder = tmp_path_factory.mktemp("exact")
    slow = any(item.get_closest_marker("slow") for item in request.session.items if item.path == request.path)
    return {ranks: launch(ranks, folder, "exact") for ranks in (*QUICK, *(SLOW if slow else ()))}


@SHARED
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_processes_gives_the_same_bits(results: Results, ranks: int, case: str) -> None:
    alone, shared = results[1][f"exact {case}"], results[ranks][f"exact {case}"]
    assert_equal_bits(alone, shared)
    assert shared["noise"] == alone["noise"]
    assert shared["test_loss"] == alone["test_loss"]
    assert shared["correct"].equal(alone["correct"])


@pytest.mark.parametrize("way", ["small buckets", "by node", "one message", "interrupted"])
def test_ways_to_exchange_and_interruptions_change_no_bit(results: Results, way: str) -> None:
    for ranks in QUICK:
        assert_equal_bits(results[ranks]["exact small_cnn sgd"], results[ranks][f"exact small_cnn {way}"])


def test_the_comparison_tells_jobs_apart(results: Results) -> None:
    alone = results[1]
    assert different_bits(alone["exact small_cnn sgd"], alone["exact small_cnn lamb"])
    assert all(math.isfinite(loss) for case in CASES for loss in alone[f"exact {case}"]["losses"])
