"""The result belongs to the simulated workers, not to the processes: real torchrun, real DDP on gloo."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up_training import run

SCRIPT = Path(__file__).with_name("run_steps.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
SHARED = pytest.mark.parametrize("ranks", [2, 4])
RESNETS = pytest.mark.parametrize("case", ["one step", "uneven parts"])
CASES = pytest.mark.parametrize("case", ["one step", "uneven parts", "six steps"])

Results = Mapping[int, Mapping[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What the last rank of 1, 2 and 4 saved; each number of ranks is launched once."""
    folder = tmp_path_factory.mktemp("ranks")
    saved = {}
    for ranks in (1, 2, 4):
        output = folder / f"{ranks}.pt"
        launcher = () if ranks == 1 else (*TORCHRUN, f"--nproc-per-node={ranks}")
        done = run([sys.executable, *launcher, str(SCRIPT), str(output)], timeout=240)
        assert done.returncode == 0, done.stderr
        saved[ranks] = torch.load(output, weights_only=True)
    return saved


def distance(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    """Relative L2 over all floating-point tensors of two state dicts."""
    names = [name for name, tensor in a.items() if tensor.is_floating_point()]
    flat_a, flat_b = (torch.cat([state[name].double().flatten() for name in names]) for state in (a, b))
    return float((flat_a - flat_b).norm() / flat_a.norm())


@SHARED
def test_ranks_are_told_apart(results: Results, ranks: int) -> None:
    assert results[ranks]["ranks"] == ranks
    assert results[ranks]["from rank 0"] == {"rank": 0}


@SHARED
def test_all_ranks_have_the_same_weights(results: Results, ranks: int) -> None:
    sums = results[ranks]["weight sums"]
    assert sums.shape == (ranks,)
    assert len(set(sums.tolist())) == 1


@SHARED
@RESNETS
def test_one_step_is_the_same_on_any_number_of_processes(results: Results, ranks: int, case: str) -> None:
    alone, shared = results[1][case], results[ranks][case]
    assert distance(alone["state"], shared["state"]) < 1e-6
    assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-6)


@SHARED
def test_several_steps_stay_together(results: Results, ranks: int) -> None:
    """Momentum, warm-up and schedule count optimizer steps, not parts."""
    alone, shared = results[1]["six steps"], results[ranks]["six steps"]
    assert distance(alone["state"], shared["state"]) < 1e-6
    assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert alone["losses"][-1] < 0.9 * alone["losses"][0]


@SHARED
@RESNETS
def test_integer_state_is_equal(results: Results, ranks: int, case: str) -> None:
    alone, shared = results[1][case]["state"], results[ranks][case]["state"]
    counters = [name for name, tensor in alone.items() if not tensor.is_floating_point()]
    assert counters
    assert [int(shared[name]) for name in counters] == [int(alone[name]) for name in counters]


@SHARED
@CASES
def test_evaluation_is_the_same_on_any_number_of_processes(results: Results, ranks: int, case: str) -> None:
    alone, shared = results[1][case], results[ranks][case]
    assert torch.equal(shared["correct"], alone["correct"])
    assert shared["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-4)


@SHARED
def test_gradients_in_float64_differ_by_rounding_only(results: Results, ranks: int) -> None:
    alone, shared = results[1]["float64 gradient"], results[ranks]["float64 gradient"]
    assert float((alone - shared).norm() / alone.norm()) <= 1e-14


def test_simulated_workers_make_a_difference(results: Results) -> None:
    """The distance that the bounds above rule out: another batch is another result."""
    one, other = results[1]["one step"]["state"], results[1]["uneven parts"]["state"]
    assert distance(one, other) > 1e-3
