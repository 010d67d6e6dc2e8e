"""The watch of other ranks ends a process whose main thread no collective wakes, as one of NCCL."""

import subprocess
import sys

from tests.fixtures.projects import ROOT

# Rank 1 answers, and has come to no collective; this process, rank 0, has come to one.
_SCRIPT = """
import sys, threading, time
import torch.distributed as dist
from pipeline.distributed import collectives, liveness

liveness._GRACE_S = 0.2
store, collectives._arrivals[0] = dist.HashStore(), 1

def answer():
    for count in range(1000):
        store.set("count 1", f"{count} 0")
        time.sleep(0.05)

store.set("process 1", "1 another-host")
threading.Thread(target=answer, daemon=True).start()
watch = liveness.RankWatch(store, rank=0, size=2, timeout_s=1.0)
watch.set_timeout(1.0, ends_absent=sys.argv[1] == "ends")
time.sleep(4)
"""


def test_a_rank_that_answers_and_does_not_come_ends_the_process() -> None:
    ends, waits = (
        subprocess.Popen([sys.executable, "-c", _SCRIPT, mode], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for mode in ("ends", "waits")
    )
    try:
        said = {process: process.communicate(timeout=60)[1] for process in (ends, waits)}
    finally:
        for process in (ends, waits):
            process.kill()
    assert waits.returncode == 0, said[waits]
    assert ends.returncode == 2, said[ends]
    last = said[ends].splitlines()[-1]
    assert last.startswith("error: rank 1 (process 1 on another-host) has not come to the others within 1 s"), last
