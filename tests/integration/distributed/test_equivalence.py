"""The result depends on the simulated workers, not on the processes: real torchrun, real collectives on gloo."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fixtures.slow import quick_first
from tests.fixtures.training import FLOAT32_ROUNDING
from tests.integration.distributed.launches import assert_equal_bits, different_bits, launch
from tests.integration.distributed.run_steps import MUTATED

pytestmark = pytest.mark.timeout(1200)

Results = Mapping[int, Mapping[str, Any]]

# The limits of rounding in float64, see `beyond_rounding`. A sum of n numbers in any order is off by at most n 2^-53
# of their magnitudes (Higham 2002, section 4.2); the longest here, the gradient of a filter, is of 66 images of 64
# pixels: 5e-13. Probabilities are computed in float32. In units of 2^-24, two of them differ by at most 14: by 2 since
# logits below 4 may be rounded to neighbors, 4 apart (a probability p follows by p (1 - p) <= 1/4 of twice that); by 5
# for each softmax of 4 classes (1 for exp, which is off by 2 units, 3 for the sum, 1 for the quotient); by 1 in the sum
# over passes, which is in whole units; and by 1 in the mean.
ROUNDING = {"weights": 1e-12, "update": 1e-12, "losses": 1e-12, "noise": 1e-12, "confidence": 14 * 2.0**-24}

SHARED = pytest.mark.parametrize("ranks", quick_first(1, [2, 4]))
_SMALL = ["small_cnn X=4", "small_cnn X=8", "resnet18 X=4"]
ONE_STEP = pytest.mark.parametrize(
    ("ranks", "case"),
    quick_first(
        3,
        [
            *itertools.product([2], [*_SMALL, "resnet18 X=8", "resnet18 bn_group", "resnet18 clipped"]),
            *itertools.product([4], _SMALL),
        ],
    ),
)
SEVERAL_STEPS = pytest.mark.parametrize(
    ("case", "reference"),
    [
        ("several", "several"),
        ("micro-batch", "several"),
        ("interrupted", "several"),
        ("growing", "growing"),
        ("growing micro-batch", "growing"),
        ("growing interrupted", "growing"),
        ("uneven", "uneven"),
        ("uneven clipped", "uneven clipped"),
    ],
)
MUTANT = pytest.mark.parametrize(
    ("ranks", "mutant", "case"),
    quick_first(1, [(2, *item) for item in MUTATED.items()] + [(4, *item) for item in list(MUTATED.items())[:1]]),
)
_EXACT = ("exact small_cnn sgd", "exact small_cnn by node", "exact mutant")
FEW = ("ddp small_cnn", "ddp resnet18 X=4", "local", "mutant mean of means", *_EXACT)
ALL = ("ddp", "local", "mutant", *_EXACT)


class _Launches(dict[int, Mapping[str, Any]]):
    """What each number of ranks saved, launched at the first access."""

    def __init__(self, launch: Callable[[int], Mapping[str, Any]]) -> None:
        super().__init__()
        self._launch = launch

    def __missing__(self, ranks: int) -> Mapping[str, Any]:
        self[ranks] = {}  # a launch that fails is not repeated
        self[ranks] = self._launch(ranks)
        return self[ranks]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Results of 1, 2 and 4 ranks. Of 4, and where no slow test runs, those of few cases."""
    folder = tmp_path_factory.mktemp("ranks")
    slow = any(item.get_closest_marker("slow") for item in request.session.items if item.path == request.path)

    def groups(ranks: int) -> list[str]:
        words = ALL if slow and ranks < 4 else FEW
        if ranks > 1:
            return list(words)
        # One process is the reference, without mistakes but the one of the meter.
        return [*(word for word in words if not word.startswith("mutant")), "mutant schedule per micro-step"]

    return _Launches(lambda ranks: launch(ranks, folder, *groups(ranks)))


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Return the relative L2 distance over all floating-point tensors of two state dicts."""
    names = [name for name, tensor in a.items() if tensor.is_floating_point()]
    flat_a, flat_b = (torch.cat([state[name].double().flatten() for name in names]) for state in (a, b))
    return float((flat_a - flat_b).norm() / flat_a.norm())


def update(result: Mapping[str, Any], first: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the change of each weight in training, which shows more than the weights."""
    return {name: result["state"][name] - weight for name, weight in first.items()}


def beyond_rounding(
    alone: Mapping[str, Any], shared: Mapping[str, Any], first: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return the differences above `ROUNDING`.

    They are relative for the weights with the buffers, their update, the losses and the meter. For the probabilities
    of the labels in training it is the largest difference.
    """
    differences = {
        "weights": distance(alone["state"], shared["state"]),
        "update": distance(update(alone, first), update(shared, first)),
        "losses": _largest_difference(alone["losses"], shared["losses"]),
        "noise": _largest_difference(alone["noise"], shared["noise"]),
        "confidence": _confidence_difference(alone["confidence"], shared["confidence"]),
    }
    return {name: difference for name, difference in differences.items() if not difference <= ROUNDING[name]}


def _pair_of(results: Results, ranks: int, case: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the results of a case on one process and on `ranks`."""
    return results[1][case], results[ranks][case]


def _largest_difference(a: Sequence[float], b: Sequence[float]) -> float:
    return max((abs(y - x) / abs(x) for x, y in zip(a, b, strict=True)), default=0.0)


def _confidence_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference; infinite if the images are not the same."""
    seen = ~a.isnan()
    return float((a - b)[seen].abs().max()) if torch.equal(seen, ~b.isnan()) and seen.any() else math.inf


@SHARED
def test_ranks_have_different_numbers(results: Results, ranks: int) -> None:
    assert results[ranks]["ranks"] == ranks
    assert results[ranks]["from rank 0"] == {"rank": 0}


@SHARED
def test_all_ranks_end_with_the_same_weights(results: Results, ranks: int) -> None:
    trained = {name: case for name, case in results[ranks].items() if isinstance(case, Mapping) and "losses" in case}
    assert len(trained) >= 14
    different = [name for name, case in trained.items() if not case["same on all ranks"]]
    assert [name for name in different if not name.startswith("mutant")] == []
    # Each rank has its own statistics.
    one_rank = "mutant BatchNorm statistics of one rank"
    assert (one_rank in different) == (one_rank in trained)


@ONE_STEP
def test_one_step_is_the_same_up_to_rounding(results: Results, ranks: int, case: str) -> None:
    """This holds for micro-batches, smaller BatchNorm groups, clipping and averaged weights, too."""
    first, alone, shared = results[1]["first weights"][case.split()[0]], *_pair_of(results, ranks, f"ddp {case}")
    assert beyond_rounding(alone, shared, first) == {}


@SHARED
@pytest.mark.parametrize("network", ["resnet18", "small_cnn"])
def test_a_step_in_float32_is_off_by_its_rounding(results: Results, ranks: int, network: str) -> None:
    """The distance to the step in float64 is below the limit of rounding."""
    first, case = results[1]["first weights"][network], f"ddp {network} X=4"
    exact = update(results[1][case], first)
    for result in _pair_of(results, ranks, f"{case} float32"):
        changed = update(result, first)
        assert {tensor.dtype for tensor in changed.values() if tensor.is_floating_point()} == {torch.float32}
        assert 0 < distance(exact, changed) <= FLOAT32_ROUNDING


@SHARED
@SEVERAL_STEPS
def test_several_steps_stay_together(results: Results, ranks: int, case: str, reference: str) -> None:
    """Momentum, warm-up, schedule, clipping, averaging and meter count optimizer steps, not forward passes."""
    alone, shared = results[1][f"ddp small_cnn {reference}"], results[ranks][f"ddp small_cnn {case}"]
    first = results[1]["first weights"]["small_cnn"]
    assert beyond_rounding(alone, shared, first) == {}


@MUTANT
def test_a_mutant_is_further_apart_than_rounding(results: Results, ranks: int, mutant: str, case: str) -> None:
    """The assertions of the tests above fail for `case` if the code makes the mistake."""
    first, alone = results[1]["first weights"][case.split()[1]], results[1][case]
    assert beyond_rounding(alone, results[ranks][case], first) == {}
    differences = beyond_rounding(alone, results[ranks][f"mutant {mutant}"], first)
    shown = {"weights", "update"} if "statistics" in mutant else {"weights", "update", "losses", "confidence"}
    assert differences.keys() >= shown


@pytest.mark.slow
def test_a_meter_that_counts_passes_has_another_number_of_samples(results: Results) -> None:
    alone, shared = (results[ranks]["mutant schedule per micro-step"]["noise"][0] for ranks in (1, 2))
    assert alone != shared


@pytest.mark.parametrize("ranks", quick_first(2, [1, 2, 4]))
@pytest.mark.parametrize(("straight", "interrupted"), [("several", "interrupted"), ("growing", "growing interrupted")])
def test_a_run_resumes_in_the_same_bits(results: Results, ranks: int, straight: str, interrupted: str) -> None:
    """One of the runs is interrupted before its batch grows."""
    assert_equal_bits(results[ranks][f"ddp small_cnn {straight}"], results[ranks][f"ddp small_cnn {interrupted}"])


@pytest.mark.parametrize("way", ["sgd", "by node"])
def test_exact_sums_have_equal_bits_on_two_processes(results: Results, way: str) -> None:
    """The quick case of test_exact.py."""
    alone, shared = results[1]["exact small_cnn sgd"], results[2][f"exact small_cnn {way}"]
    assert_equal_bits(alone, shared)
    for key in ("links", "noise", "test_loss"):
        assert alone[key] == shared[key], key


def test_a_sum_that_rounds_has_other_bits_on_two_processes(results: Results) -> None:
    assert different_bits(results[1]["exact mutant"], results[2]["exact mutant"]) != []


@ONE_STEP
def test_evaluation_is_the_same_on_any_number_of_processes(results: Results, ranks: int, case: str) -> None:
    alone, shared = _pair_of(results, ranks, f"ddp {case}")
    assert torch.equal(shared["correct"], alone["correct"])
    assert shared["test_loss"] == pytest.approx(alone["test_loss"], rel=ROUNDING["losses"])


@pytest.mark.slow
def test_other_jobs_are_further_apart_than_rounding(results: Results) -> None:
    """The bounds detect another number of simulated workers, which gives another result."""
    four, eight = results[1]["ddp resnet18 X=4"], results[1]["ddp resnet18 X=8"]
    assert distance(four["state"], eight["state"]) > 1e-3
    several, growing = results[1]["ddp small_cnn several"], results[1]["ddp small_cnn growing"]
    assert distance(several["state"], growing["state"]) > 1e-3


def test_post_local_sgd_is_refused_where_workers_are_simulated(results: Results) -> None:
    assert results[1]["local two"]["refused"] == (
        "post_local_sgd: 1 processes cannot run simulated_workers 2, since each has separate weights; use 2"
    )


def test_post_local_sgd_ends_in_equal_weights_on_all_ranks(results: Results) -> None:
    plain, local = results[2]["local plain"], results[2]["local two"]
    assert local["same on all ranks"]
    assert distance(plain["state"], local["state"]) > 1e-6  # a million times the limit of rounding
    assert plain["losses"][:2] == local["losses"][:2]  # before local steps start
    assert local["losses"][-1] < local["losses"][0]


def test_post_local_sgd_resumes_in_the_same_bits(results: Results) -> None:
    assert_equal_bits(results[2]["local two"], results[2]["local interrupted"])
