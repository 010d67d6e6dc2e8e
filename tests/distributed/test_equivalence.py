"""The result belongs to the simulated workers, not to the processes: real torchrun, real DDP on gloo."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).with_name("run_steps.py")


def run(folder: Path, *, ranks: int, steps: int, batch_size: int) -> dict[str, Any]:
    output = folder / f"ranks{ranks}.pt"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    subprocess.run(
        [*torchrun, str(SCRIPT), str(output), str(steps), str(batch_size)],
        check=True,
        timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    content: dict[str, Any] = torch.load(output, weights_only=True)
    assert content["ranks"] == ranks
    return content


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Relative L2 over all floating-point tensors of two state dicts."""
    names = [name for name, tensor in a.items() if tensor.is_floating_point()]
    flat_a, flat_b = (torch.cat([state[name].double().flatten() for name in names]) for state in (a, b))
    return float((flat_a - flat_b).norm() / flat_a.norm())


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_step_is_the_same_on_any_number_of_processes(tmp_path: Path, ranks: int) -> None:
    alone = run(tmp_path, ranks=1, steps=1, batch_size=32)
    shared = run(tmp_path, ranks=ranks, steps=1, batch_size=32)
    assert distance(alone["state"], shared["state"]) < 1e-6
    assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert shared["test_loss"] == pytest.approx(alone["test_loss"], rel=1e-4)
    assert torch.equal(shared["correct"], alone["correct"])


def test_parts_of_unequal_size_give_the_same_gradient(tmp_path: Path) -> None:
    """34 images over four simulated workers are parts of 8 and 9."""
    alone = run(tmp_path, ranks=1, steps=1, batch_size=34)
    shared = run(tmp_path, ranks=2, steps=1, batch_size=34)
    assert distance(alone["state"], shared["state"]) < 1e-6
