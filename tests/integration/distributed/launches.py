"""Start `run_steps` alone or by torchrun, and compare what its ranks saved."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.fixtures.training import run

SCRIPT = Path(__file__).with_name("run_steps.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
_TIMEOUT_S = 400.0


def launch(ranks: int, folder: Path, *groups: str) -> Mapping[str, Any]:
    """Run the cases whose names begin with the words of a group, and return what the last rank saved."""
    return _launched(ranks, folder / f"{ranks}.pt", *groups)


def launch_part(ranks: int, folder: Path, case: str, checkpoints: Path, stop: int) -> Mapping[str, Any]:
    """Resume a case from its checkpoints and stop after a step; return what rank 0 saved."""
    return _launched(ranks, folder / "part.pt", "--part", case, str(checkpoints), str(stop))


def _launched(ranks: int, output: Path, *arguments: str) -> Mapping[str, Any]:
    launcher = () if ranks == 1 else (*TORCHRUN, f"--nproc-per-node={ranks}")
    environ = {"PYTHONPATH": str(SCRIPT.parents[3])}
    done = run([sys.executable, *launcher, str(SCRIPT), str(output), *arguments], timeout=_TIMEOUT_S, environ=environ)
    assert done.returncode == 0, done.stderr
    saved: Mapping[str, Any] = torch.load(output, weights_only=True)
    return saved


def different_bits(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of weights and buffers that differ, and of training losses and confidences."""
    assert list(one["state"]) == list(other["state"])
    names = [name for name, tensor in one["state"].items() if not torch.equal(tensor, other["state"][name])]
    if one["losses"] != other["losses"]:
        names.append("losses")
    same = one["confidence"].numpy().tobytes() == other["confidence"].numpy().tobytes()
    return names if same else [*names, "confidence"]


def assert_equal_bits(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Check that weights, buffers, training losses and confidences are equal in every bit."""
    assert different_bits(one, other) == []
