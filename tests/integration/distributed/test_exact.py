"""`reduction: exact` gives equal bits for every number of processes, bucket size and collective, by real torchrun."""

import math
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError
from tests.integration.distributed.launches import assert_equal_bits, different_bits, launch, launch_part

# test_equivalence.py has the quick case, with two processes.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

Results = Mapping[int, Mapping[str, Any]]

RESNETS = ("resnets resnet18 sgd", "resnets resnet18 lamb", "resnets resnet18 muon bf16")
SMALL = (
    "exact small_cnn sgd",
    "exact small_cnn lamb",
    "exact small_cnn muon bf16",
    "exact small_cnn small buckets",
    "exact small_cnn by node",
    "exact small_cnn one message",
    "exact small_cnn interrupted",
    "exact small_cnn growing",
    "exact small_cnn spike",
)
OF_SIX = ("exact small_cnn sgd", "exact small_cnn small buckets", "exact small_cnn by node")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results by number of processes; 2 of them train no ResNet, 4 nothing else, and 6 some small networks."""
    folder = tmp_path_factory.mktemp("exact")
    groups = {1: ["exact", "resnets"], 2: ["exact"], 3: ["exact", "resnets"], 4: ["resnets"], 6: OF_SIX}
    return {ranks: launch(ranks, folder, *words) for ranks, words in groups.items()}


@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        *((2, case) for case in SMALL),
        *((3, case) for case in (*SMALL, *RESNETS)),
        *((4, case) for case in RESNETS),
        *((6, case) for case in OF_SIX),
    ],
)
def test_any_number_of_processes_gives_the_bits_of_one(results: Results, ranks: int, case: str) -> None:
    _assert_all_equal(results[1][case], results[ranks][case])


def _assert_all_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Check weights, buffers, losses, rates, label dynamics, hash chain, noise scale and all evaluations."""
    assert_equal_bits(one, other)
    for key in ("rates", "accuracies", "links", "noise", "test_loss"):
        assert one[key] == other[key], key
    assert one["correct"].equal(other["correct"])
    assert one["dynamics"].numpy().tobytes() == other["dynamics"].numpy().tobytes()  # with NaN


@pytest.mark.parametrize("way", ["small buckets", "by node", "one message", "interrupted"])
def test_ways_to_exchange_and_interruptions_change_no_bit(results: Results, way: str) -> None:
    for ranks in (1, 3):
        straight, other = (results[ranks][f"exact small_cnn {name}"] for name in ("sgd", way))
        assert_equal_bits(straight, other)
        assert straight["links"] == other["links"]


def test_the_comparison_tells_jobs_apart(results: Results) -> None:
    alone = results[1]
    assert different_bits(alone["exact small_cnn sgd"], alone["exact small_cnn lamb"])
    assert different_bits(alone["exact small_cnn sgd"], alone["exact small_cnn spike"])
    assert all(math.isfinite(loss) for case in (*SMALL, *RESNETS) for loss in alone[case]["losses"])
    sgd, lamb = (alone[f"exact small_cnn {optimizer}"] for optimizer in ("sgd", "lamb"))
    for key in ("rates", "accuracies"):
        assert sgd[key] != lamb[key], key
    # After each second step but the last; and of the images trained on, nine of ten.
    assert [top1 is not None for top1, _ in sgd["accuracies"]] == [False, True, False, True, False, False]
    assert sgd["dynamics"][0].isfinite().sum() == 135
    assert not sgd["dynamics"].equal(lamb["dynamics"])


def test_a_sum_that_rounds_has_other_bits(results: Results) -> None:
    """The tests above fail for a mistake in the sum."""
    assert different_bits(results[1]["exact mutant"], results[3]["exact mutant"]) != []


def test_ranks_of_two_versions_are_refused(results: Results) -> None:
    refused = results[3]["exact small_cnn mixed"]["refused"]
    assert InputError(refused).key == "reduction"
    assert f"rank 2 on {socket.gethostname()} has torch 1.0" in refused
    assert "\n" not in refused
    assert "refused" not in results[1]["exact small_cnn mixed"]


@pytest.mark.distributed
def test_a_run_on_4_3_1_and_2_processes_has_the_chain_of_one(results: Results, tmp_path: Path) -> None:
    """Each part stops after a step, and the next resumes with another number of processes."""
    case = "exact small_cnn sgd"
    straight = results[1][case]
    parts = [
        launch_part(ranks, tmp_path, case, tmp_path / "elastic", stop)
        for ranks, stop in ((4, 1), (3, 3), (1, 4), (2, 100))
    ]
    assert [part.get("stopped") for part in parts] == [1, 3, 4, None]
    assert [int(text.split()[0]) for text in parts[-1]["hardware"]] == [4, 3, 1, 2]
    assert len(straight["links"]) == 6
    _assert_all_equal(straight, parts[-1])
