"""How many processes share a piece of work, and starting them by torchrun."""

import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Literal

import torch

from pipeline.errors import InputError
from pipeline.processes import child_pids

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


LAUNCHER = "BATCHSIEVE_LAUNCHER"
"""Environment variable with the process id of whoever started the ranks."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Which processes may do a piece of work.

    Attributes:
        workers: requested.
        fitting: numbers of processes that can share it evenly, ascending.
        threads: CPU threads of each.
    """

    workers: int | Literal["auto"]
    fitting: Sequence[int]
    threads: int | Literal["auto"]


def local_gpus() -> int:
    """GPUs of this node, or 1 to work on the CPU."""
    return max(1, torch.cuda.device_count())


def choose_workers(requested: int | Literal["auto"], fitting: Sequence[int]) -> int:
    """Processes to start on this node: as requested, or the most of `fitting` that the GPUs allow.

    Raises:
        InputError: more were requested than the machine has GPUs, if it has any.
    """
    if requested != "auto":
        if 0 < torch.cuda.device_count() < requested:
            raise InputError(
                f"workers: {requested}, but this machine has {torch.cuda.device_count()} GPUs and a GPU takes one "
                "process; give fewer, or CUDA_VISIBLE_DEVICES= to work on the CPU"
            )
        return requested
    return max(count for count in fitting if count <= local_gpus())


def participating_ranks(requested: int | Literal["auto"], fitting: Sequence[int], world: int) -> int:
    """How many of `world` processes that torchrun started take part; the others wait for the end.

    Args:
        requested: `auto` takes the most of `fitting` there are, as elastic runs need it.

    Raises:
        InputError: a number was requested, and `world` is not in `fitting`.
    """
    if requested != "auto" and world not in fitting:
        raise InputError(
            f"torchrun: {world} processes cannot share the simulated workers evenly; start one of {list(fitting)} in "
            "all (--nnodes x --nproc-per-node), change simulated_workers, or set workers: auto to use the most that can"
        )
    return max(count for count in fitting if count <= world)


def launch(module: str, arguments: Sequence[str], workers: int) -> int:
    """Run `python -m module arguments` on `workers` processes of this node by torchrun.

    SIGTERM is passed on to the processes, which take the time they need to save.

    Returns:
        0, the exit code of the first process that failed, `EX_TEMPFAIL` where a process ended with
        it after SIGTERM, or 128 + the signal that ended the run.
    """
    # Imported here: only the launching process needs the agent.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # The failed rank has said why in its own words; the agent's report would bury it.
    agent = logging.getLogger("torch.distributed.elastic")
    agent.addHandler(logging.NullHandler())
    agent.propagate = False
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[LAUNCHER] = str(os.getpid())
    # The agent would end the run with a code of its own, and the ranks after half a minute.
    handled = "--signals-to-handle=SIGINT,SIGHUP,SIGQUIT"
    before = signal.signal(signal.SIGTERM, _forward_signal)
    try:
        run(parse_args(["--standalone", handled, f"--nproc-per-node={workers}", "-m", module, *arguments]))
    except ChildFailedError as error:
        # The agent ends the others by signals.
        if any(failure.exitcode == os.EX_TEMPFAIL for failure in error.failures.values()):
            return os.EX_TEMPFAIL
        first = _first_failure(list(error.failures.values()))
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _first_failure(failures: Sequence["ProcessFailure"]) -> "ProcessFailure":
    """Whoever was killed, where the others noticed it in the same moment; else the first.

    The agent ends the others by SIGTERM, and by SIGKILL half a minute later. Times are whole seconds.
    """
    first = min(failures, key=lambda failure: failure.timestamp)
    killed = [
        failure
        for failure in failures
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM and failure.timestamp <= first.timestamp + 1
    ]
    by_agent = first.exitcode == -signal.SIGTERM
    others = [failure for failure in failures if failure.exitcode != -signal.SIGTERM] if by_agent else []
    return (killed or others or [first])[0]


def _forward_signal(number: int, _: FrameType | None) -> None:
    """Send a signal on to this process's children; end by it where there are none yet."""
    children = child_pids(os.getpid())
    for child in children:
        os.kill(child, number)
    if not children:
        sys.exit(128 + number)
