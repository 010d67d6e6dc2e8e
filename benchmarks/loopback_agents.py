"""Emulate nodes: run several agents of one torchrun job on this machine, over the loopback interface."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.two_hosts import LOOPBACK
from pipeline.distributed.launch import LAUNCHER


def launch_agents(module: str, options: Sequence[str], *, agents: int, ranks_each: int) -> int:
    """Run `python -m MODULE OPTIONS` on `ranks_each` processes of each agent.

    GPUs, if any, are assigned to the agents in order.

    Returns:
        0, or the exit code of the first agent that failed; the other agents are then terminated.
    """
    with socket.socket() as free:
        free.bind((LOOPBACK.address, 0))
        port: int = free.getsockname()[1]
    job = [
        f"--nnodes={agents}", f"--nproc-per-node={ranks_each}", "--rdzv-backend=c10d", "--rdzv-id=agents",
        f"--rdzv-endpoint={LOOPBACK.address}:{port}", f"--local-addr={LOOPBACK.address}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", *job, "-m", module, *options]
    running = [subprocess.Popen(command, env=_environment(agent, ranks_each)) for agent in range(agents)]
    try:
        codes = [process.poll() for process in running]
        while None in codes and not any(codes):
            time.sleep(0.1)
            codes = [process.poll() for process in running]
    finally:
        for process in running:
            process.terminate()
            process.wait()
    return next((code for code in codes if code), 0)


def _environment(agent: int, ranks_each: int) -> dict[str, str]:
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **LOOPBACK.environ}
    # Set by an earlier `distributed.launch` in this process. Here the agents start the ranks.
    environment.pop(LAUNCHER, None)
    if count := torch.cuda.device_count():
        # Each agent numbers its ranks, and hence its GPUs, from 0.
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[agent * ranks_each : (agent + 1) * ranks_each])
    return environment
