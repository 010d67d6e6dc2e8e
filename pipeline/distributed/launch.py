"""Choose the number of processes and start them by torchrun."""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import torch

from pipeline.distributed.collectives import DEFAULT_TIMEOUT_S
from pipeline.errors import InputError
from pipeline.processes import child_pids, describe_signal, signal_handler

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure


LAUNCHER = "BATCHSIEVE_LAUNCHER"
"""Environment variable with the id of the process that started the ranks."""


SHARED_GPU = "BATCHSIEVE_SHARED_GPU"
"""Environment variable: with 1, ranks share this machine's GPUs and exchange by gloo, to test several on one GPU."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The processes that a job may use.

    Attributes:
        workers: requested processes.
        valid_world_sizes: numbers of processes that can share the job, ascending.
        threads: CPU threads of each process.
        timeout_seconds: time without an answer after which a process counts as lost.
    """

    workers: int | Literal["auto"]
    valid_world_sizes: Sequence[int]
    threads: int | Literal["auto"]
    timeout_seconds: float = DEFAULT_TIMEOUT_S


def shares_gpus() -> bool:
    """Return whether several ranks may use one GPU."""
    return os.environ.get(SHARED_GPU) == "1"


def local_gpus() -> int:
    """Return the GPUs of this node, or 1 to work on the CPU."""
    return max(1, torch.cuda.device_count())


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    names, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    return names.split(",")[:count] if names else [str(index) for index in range(count)]


def choose_workers(requested: int | Literal["auto"], valid_sizes: Sequence[int]) -> int:
    """Return the processes to start on this node: as requested, or the most of `valid_sizes` that the GPUs allow.

    Raises:
        InputError: more were requested than the machine has GPUs, if it has any.
    """
    if requested != "auto":
        if 0 < torch.cuda.device_count() < requested and not shares_gpus():
            here = f"this machine has {torch.cuda.device_count()} GPUs, one process each"
            if len(valid_sizes) == 1:
                raise InputError(
                    f"simulated_workers: {requested}, which need one process each, and {here}; lower it, use more "
                    "nodes, or set CUDA_VISIBLE_DEVICES= to work on the CPU"
                )
            raise InputError(
                f"workers: {requested}, but {here}; give fewer, or set CUDA_VISIBLE_DEVICES= to work on the CPU"
            )
        return requested
    gpus = local_gpus()  # asks the driver
    return max(size for size in valid_sizes if size <= gpus)


def participating_ranks(requested: int | Literal["auto"], valid_sizes: Sequence[int], world_size: int) -> int:
    """Return how many of the `world_size` processes that torchrun started take part; the others wait for the end.

    Args:
        requested: `auto` takes the most of `valid_sizes` that there are, as elastic runs need.

    Raises:
        InputError: a number was requested, and `world_size` is not in `valid_sizes`.
    """
    if requested != "auto" and world_size not in valid_sizes:
        raise InputError(
            f"torchrun: {world_size} processes cannot share the simulated workers; start one of "
            f"{list(valid_sizes)} in all (--nnodes x --nproc-per-node), change simulated_workers, or set workers: auto "
            "to use the most that can"
        )
    return max(size for size in valid_sizes if size <= world_size)


def launch(module: str, arguments: Sequence[str], workers: int) -> int:
    """Run `python -m module arguments` on `workers` processes of this node by torchrun.

    SIGTERM and SIGINT are forwarded to the processes as SIGTERM: they save before they exit. A second SIGINT kills
    them. Where they had nothing to save, the earlier handler takes the signal.

    Returns:
        0, the exit code of the first process that failed, `EX_TEMPFAIL` where a process ended with it after a signal,
        or 128 + the signal that ended the run.
    """
    # Imported here: only the launching process needs the agent.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # The failed rank has printed its error; the agent's report would hide it.
    agent = logging.getLogger("torch.distributed.elastic")
    agent.addHandler(logging.NullHandler())
    agent.propagate = False
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[LAUNCHER] = str(os.getpid())
    # The agent would return another exit code, and kill the ranks after half a minute.
    handled = "--signals-to-handle=SIGHUP,SIGQUIT"
    with _forwarding_signals() as signals:
        try:
            run(parse_args(["--standalone", handled, f"--nproc-per-node={workers}", "-m", module, *arguments]))
        except ChildFailedError as error:
            if signals.repeated:
                signals.end()
            # The agent ends the others by signals.
            if any(failure.exitcode == os.EX_TEMPFAIL for failure in error.failures.values()):
                return os.EX_TEMPFAIL
            first = _first_failure(list(error.failures.values()))
            if first.exitcode == -signal.SIGTERM:
                signals.end()
            elif first.exitcode < 0:
                _report_killed(first)
            return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
        except SignalException as error:
            return 128 + int(error.sigval)
    return 0


def _first_failure(failures: Sequence["ProcessFailure"]) -> "ProcessFailure":
    """Return the killed process, if the others failed within a second of it; else the first failure.

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


def _report_killed(failure: "ProcessFailure") -> None:
    """Print which rank was killed: it could not say it."""
    end = describe_signal(-failure.exitcode)
    print(f"error: rank {failure.local_rank} (process {failure.pid}) {end}", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class _Signals:
    """Signals that arrived while the ranks ran, and the handlers before them."""

    received: list[int] = field(default_factory=list)
    before: dict[int, Any] = field(default_factory=dict)

    @property
    def repeated(self) -> bool:
        """Whether SIGINT came twice; the second one kills the ranks."""
        return self.received.count(signal.SIGINT) > 1

    def end(self) -> None:
        """Hand the first signal, if one arrived, to the handler that it had before, which raises."""
        if self.received and callable(handler := self.before[self.received[0]]):
            handler(self.received[0], None)


@contextmanager
def _forwarding_signals() -> Iterator[_Signals]:
    """Forward SIGTERM and SIGINT as SIGTERM to this process's children, and a second SIGINT as SIGKILL.

    Where there are no children yet, the earlier handler gets the signal.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    signals = _Signals(before={number: signal.getsignal(number) for number in numbers})

    def forward(number: int, _: FrameType | None) -> None:
        signals.received.append(number)
        children = child_pids(os.getpid())
        for child in children:
            os.kill(child, signal.SIGKILL if signals.repeated else signal.SIGTERM)
        # Later the ranks may have ended, with an outcome of their own.
        if not children and len(signals.received) == 1:
            signals.end()
            sys.exit(128 + number)

    with signal_handler(forward, numbers):
        yield signals
