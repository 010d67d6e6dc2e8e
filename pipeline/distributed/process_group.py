"""Join the process group if torchrun started this process, and leave it at the end."""

import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from pipeline.distributed.collectives import (
    DEFAULT_TIMEOUT_S,
    collective_timeout,
    extra_groups,
    is_distributed,
    launched_by_torchrun,
    uses_nccl,
)
from pipeline.distributed.float32 import float32_arithmetic
from pipeline.distributed.launch import LAUNCHER, SHARED_GPU, shares_gpus
from pipeline.distributed.liveness import RankWatch, is_lost_connection, lost_line, watch_store
from pipeline.distributed.openmp import check_openmp
from pipeline.errors import InputError, MachineError, Terminated
from pipeline.processes import disable_malloc_trim, set_parent_death_signal

_TIMEOUT = timedelta(minutes=30)
_CONNECT_TIMEOUT = timedelta(minutes=5)
_AGENT_STOP_TIMEOUT_S = 60
_POLL_INTERVAL_S = 0.01
_FINISHED = "finished"
_NO_TIMEOUT = timedelta(days=365)
# The watch of this process, like torch's process group one of a process.
_watches: list[RankWatch] = []


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among the ranks of a run.

    Attributes:
        rank: of this process, from 0.
        size: number of ranks.
    """

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


@contextmanager
def alone_in_process() -> Iterator[World]:
    """Yield a world of one, for functions that other programs call.

    The caller's threads, memory allocator and process group stay as they are. Products and convolutions are in IEEE
    single precision.

    Raises:
        InputError: a variable limits the threads, see `check_openmp`.
    """
    check_openmp(torch.get_num_threads())
    with float32_arithmetic(tf32=False):
        yield World(rank=0, size=1, device=_default_device())


@contextmanager
def join_process_group(
    threads_per_worker: int | Literal["auto"],
    choose_world_size: Callable[[int], int] = lambda world_size: world_size,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Iterator[World]:
    """Join the process group if torchrun started this process; leave it at the end.

    A process that is not needed waits until the others have finished, and exits with 0.

    If several ranks fail, by the same bad input or the loss of another rank, only the first raises its exception. The
    others wait for torchrun to stop them, so that the error is printed once.

    Products and convolutions are in IEEE single precision, see `float32_arithmetic`.

    A rank that does not answer at all is named after half a minute, and lost after a minute. See `liveness`.

    Args:
        choose_world_size: maps the number of processes that torchrun started to the number that take part.
        timeout_s: time after which a rank that does not reach the others counts as lost, and they end.

    Raises:
        InputError: torchrun started more processes than this machine has GPUs, or a variable limits the threads, see
            `check_openmp`.
        MachineError: another rank is lost.
    """
    with float32_arithmetic(tf32=False), _joined(threads_per_worker, choose_world_size, timeout_s) as world:
        yield world


@contextmanager
def _joined(
    threads_per_worker: int | Literal["auto"], choose_world_size: Callable[[int], int], timeout_s: float
) -> Iterator[World]:
    if not torch.cuda.is_available():
        disable_malloc_trim()
    if not launched_by_torchrun():
        torch.set_num_threads(threads_per_process(threads_per_worker, 1))
        check_openmp(torch.get_num_threads())
        yield World(rank=0, size=1, device=_default_device())
        return
    _die_with_agent()
    local = int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(threads_per_process(threads_per_worker, int(os.environ["LOCAL_WORLD_SIZE"])))
    device, backend = _device_and_backend(local, int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, n_launched = next(rendezvous("env://", timeout=_CONNECT_TIMEOUT))
    with _raise_first_failure_only(store, f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT')}"):
        check_openmp(torch.get_num_threads())
        world_size = choose_world_size(n_launched)
    if rank >= world_size:
        store.wait([_FINISHED], _NO_TIMEOUT)
        sys.exit(0)
    name, own = _fresh_store(store, rank, world_size)
    # With its device NCCL connects at once: what is wrong shows here, and not in the first collective of the training.
    device_id = device if backend == "nccl" else None
    dist.init_process_group(
        backend, store=own, rank=rank, world_size=world_size, timeout=_TIMEOUT, device_id=device_id
    )  # fmt: skip
    try:
        with _watched(name, rank, world_size, timeout_s), _raise_first_failure_only(own, "training"):
            yield World(rank=rank, size=world_size, device=device)
            if rank == 0:
                store.set(_FINISHED, "")
    finally:
        extra_groups.clear()
        dist.destroy_process_group()


def _default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _device_and_backend(local: int, here: int, gpus: int) -> tuple[torch.device, str]:
    """Return the device of a rank, and the library by which ranks exchange.

    Args:
        local: rank among the `here` ranks of this machine.
        gpus: of this machine.

    Raises:
        InputError: there are more ranks than GPUs: NCCL rejects two ranks on one GPU.
    """
    if gpus == 0:
        return torch.device("cpu"), "gloo"
    if shares_gpus():
        return torch.device("cuda", local % gpus), "gloo"
    if gpus < here:
        raise InputError(
            f"torchrun: {here} processes, but this machine has {gpus} GPUs, one process each; start fewer, "
            f"or set CUDA_VISIBLE_DEVICES= to work on the CPU, or {SHARED_GPU}=1 to test several on one GPU"
        )
    return torch.device("cuda", local), "nccl"


@contextmanager
def _watched(name: str, rank: int, size: int, timeout_s: float) -> Iterator[None]:
    """Watch the other ranks during the block; `name` is of this set of ranks."""
    if size == 1:
        yield
        return
    watch = RankWatch(watch_store(name), rank=rank, size=size, timeout_s=timeout_s)
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)
        watch.stop()


def set_collective_timeout(seconds: float) -> None:
    """Set the time after which a collective that waits for other ranks fails, in seconds.

    Until this call ranks wait for `_TIMEOUT`, since one rank may read files for long at the start. TCP drops a lost
    peer only after a quarter of an hour.
    """
    if is_distributed():
        # Before torch 2.12 or so it had no public name.
        set_timeout = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout
        set_timeout(collective_timeout(seconds))
        for group in extra_groups:
            set_timeout(timedelta(seconds=seconds), group)
        for watch in _watches:
            watch.set_timeout(seconds, ends_absent=uses_nccl())


def _fresh_store(store: Any, rank: int, world_size: int) -> tuple[str, Any]:  # torch's types leave dist.Store out
    """Return a name and a part of `store` that no earlier set of ranks, started before a failure, wrote to.

    The agent's store outlives the ranks, and their old addresses are still in it. No number that torchrun gives ranks
    separates the sets on all nodes. So each rank writes a new random name, and rank 0 answers these names until all
    ranks have read the answer. Names of earlier ranks are answered without effect.
    """
    name = uuid.uuid4().hex
    if rank > 0:
        store.set(f"name of rank {rank}", name)
        store.wait([f"set of {name}"], _CONNECT_TIMEOUT)
        name = store.get(f"set of {name}").decode()
        own = _prefix_store(store, name)
        own.set(f"rank {rank} is here", "")
        return name, own
    own, others = _prefix_store(store, name), range(1, world_size)
    end = time.monotonic() + _CONNECT_TIMEOUT.total_seconds()
    while not all(own.check([f"rank {other} is here"]) for other in others):
        for other in others:
            if store.check([f"name of rank {other}"]):
                store.set(f"set of {store.get(f'name of rank {other}').decode()}", name)
        if time.monotonic() > end:
            raise TimeoutError(f"not all of {world_size} ranks have come within {_CONNECT_TIMEOUT}")
        time.sleep(_POLL_INTERVAL_S)
    return name, own


def _prefix_store(store: Any, name: str) -> Any:
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


@contextmanager
def _raise_first_failure_only(store: Any, scope: str) -> Iterator[None]:  # torch's types leave dist.Store out
    """Raise only the first rank's exception, see `join_process_group`; `scope` is unique to this set of ranks."""
    try:
        yield
    except BaseException as error:
        # Before this failure is counted: a rank that failed by itself knows more.
        lost = _describe_lost(error) if is_lost_connection(error) else None
        if store.add(f"failed ranks, {scope}", 1) > 1:
            if isinstance(error, Terminated):
                sys.exit(os.EX_TEMPFAIL)
            time.sleep(_AGENT_STOP_TIMEOUT_S)
        if lost:
            raise MachineError(lost_line(lost)) from error
        raise


def _describe_lost(error: BaseException) -> str:
    reason = " ".join(str(error).split())[:200]
    known = [found for watch in _watches if (found := watch.find_lost(error))]
    return known[0] if known else f"another rank is lost, or did not come in time ({reason})"


def _die_with_agent() -> None:
    """Exit with the torchrun agent: without it a rank would continue as an orphan."""
    set_parent_death_signal(signal.SIGKILL)
    # No signal arrives if the agent died earlier, while this process was importing.
    parent = str(os.getppid())
    if os.environ.get(LAUNCHER, parent) != parent:
        sys.exit("the process that started this rank is gone")


def threads_per_process(requested: int | Literal["auto"], workers_here: int) -> int:
    """Return the CPU threads of each of `workers_here` processes on this node; `auto` divides the cores."""
    return max(1, len(os.sched_getaffinity(0)) // workers_here) if requested == "auto" else requested
