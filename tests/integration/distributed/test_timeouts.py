"""A rank that never arrives at a collective ends the job after the timeout, over real torchrun."""

import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.projects import ROOT
from tests.fixtures.training import run

_SCRIPT = """
import sys, time
import torch
from pipeline import distributed

with distributed.join_process_group(1) as ranks:
    distributed.barrier()
    distributed.set_collective_timeout(2)
    if ranks.rank == 1:
        time.sleep(60)
    distributed.all_reduce_sum_(torch.ones(1))
"""


@pytest.mark.slow
def test_a_collective_without_one_rank_times_out(tmp_path: Path) -> None:
    script, start = tmp_path / "script.py", time.monotonic()
    script.write_text(_SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run([*torchrun, str(script)], environ={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert "rank 1 (process " in done.stderr, done.stderr
    assert "has not reached the others within 2 s" in done.stderr, done.stderr
    assert time.monotonic() - start < 50
