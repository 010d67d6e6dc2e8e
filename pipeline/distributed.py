"""Ranks: the only module that talks to torch.distributed or reads its environment variables.

Everything is a no-op on one process, so callers have one code path. Tensors are reduced in place
where the name ends in an underscore.
"""

import inspect
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from pipeline.errors import InputError, Terminated
from pipeline.processes import signal_on_parents_death

T = TypeVar("T")

_TIMEOUT = timedelta(minutes=30)
_CONNECT_TIMEOUT = timedelta(minutes=5)
_AGENT_ENDS_RANKS_WITHIN_S = 60
_LAUNCHER = "BATCHSIEVE_LAUNCHER"
_FINISHED = "finished"
_AS_LONG_AS_IT_TAKES = timedelta(days=365)
# Gathered at a time in a tree sum: bounds what each rank holds of the others'.
_TREE_CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among the workers of a run."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """Which processes may do a piece of work.

    Attributes:
        workers: requested.
        fitting: numbers of processes that can share it evenly, ascending.
        threads: CPU threads of each.
    """

    workers: int | Literal["auto"]
    fitting: Sequence[int]
    threads: int | Literal["auto"]


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


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


def joining_ranks(requested: int | Literal["auto"], fitting: Sequence[int], world: int) -> int:
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
    os.environ[_LAUNCHER] = str(os.getpid())
    # The agent would end the run with a code of its own, and the ranks after half a minute.
    handled = "--signals-to-handle=SIGINT,SIGHUP,SIGQUIT"
    before = signal.signal(signal.SIGTERM, _pass_on)
    try:
        run(parse_args(["--standalone", handled, f"--nproc-per-node={workers}", "-m", module, *arguments]))
    except ChildFailedError as error:
        # The agent ends the others by signals.
        if any(failure.exitcode == os.EX_TEMPFAIL for failure in error.failures.values()):
            return os.EX_TEMPFAIL
        _, first = error.get_first_failure()
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _pass_on(number: int, _: FrameType | None) -> None:
    """Send a signal on to this process's children; end by it where there are none yet."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    for child in children:
        os.kill(int(child), number)
    if not children:
        sys.exit(128 + number)


@contextmanager
def session(
    threads_per_worker: int | Literal["auto"], joining: Callable[[int], int] = lambda world: world
) -> Iterator[Ranks]:
    """Join the process group if torchrun started this process; leave it at the end.

    A process that is not needed waits until the others have finished, and exits with 0.

    Args:
        joining: from the number of processes that torchrun started to how many take part.

    Where several ranks fail, by the same bad input or over the loss of another, the exception of
    the first goes on; the others wait for torchrun to end them, so that the reason is said once.
    """
    if not launched():
        torch.set_num_threads(threads_for(threads_per_worker, 1))
        yield Ranks(rank=0, count=1, device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        return
    _die_with_agent()
    local = int(os.environ["LOCAL_RANK"])
    torch.set_num_threads(threads_for(threads_per_worker, int(os.environ["LOCAL_WORLD_SIZE"])))
    # NCCL refuses two ranks on one GPU.
    here, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if 0 < gpus < here:
        raise InputError(
            f"torchrun: {here} processes, but this machine has {gpus} GPUs and a GPU takes one process; start fewer, "
            "or CUDA_VISIBLE_DEVICES= to work on the CPU"
        )
    on_gpu = gpus > 0
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    store, rank, world = next(rendezvous("env://", timeout=_CONNECT_TIMEOUT))
    with _said_once(store, f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT')}"):
        count = joining(world)
    if rank >= count:
        store.wait([_FINISHED], _AS_LONG_AS_IT_TAKES)
        sys.exit(0)
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=_TIMEOUT)
    try:
        # The store outlives this set of ranks where torchrun starts another.
        with _said_once(store, broadcast(uuid.uuid4().hex)):
            yield Ranks(rank=rank, count=count, device=device)
            if rank == 0:
                store.set(_FINISHED, "")
    finally:
        dist.destroy_process_group()


@contextmanager
def _said_once(store: Any, scope: str) -> Iterator[None]:  # torch's types leave dist.Store out
    """Let only the first rank's exception out; see `session`. `scope` is of this set of ranks alone."""
    try:
        yield
    except BaseException as error:
        if store.add(f"failed ranks, {scope}", 1) > 1:
            if isinstance(error, Terminated):
                sys.exit(os.EX_TEMPFAIL)
            time.sleep(_AGENT_ENDS_RANKS_WITHIN_S)
        raise


def world_size() -> int:
    """Processes in this run."""
    return dist.get_world_size() if _several() else 1


def broadcast(value: T) -> T:
    """Rank 0's `value` on all ranks; any picklable object."""
    if not _several():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def any_rank(value: bool) -> bool:
    """Whether `value` is true on any rank."""
    return any(all_gather(value))


def ranks_on_this_node() -> int:
    """Processes of this run that share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def peak_gpu_bytes(ranks: Ranks) -> list[int]:
    """The most memory that tensors took at a time on this rank's GPU; empty on the CPU."""
    return [torch.cuda.max_memory_allocated(ranks.device)] if ranks.device.type == "cuda" else []


def barrier() -> None:
    """Wait for all ranks."""
    if _several():
        dist.barrier()


def all_reduce_sum_(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place."""
    if _several():
        dist.all_reduce(tensor)
    return tensor


def tree_sum_(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place, in the fixed order of `pairwise_sum`; the same bits on all ranks.

    Args:
        tensor: (n,) contiguous.
    """
    if not _several():
        return tensor
    for chunk in tensor.split(_TREE_CHUNK):
        gathered = [torch.empty_like(chunk) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, chunk)
        chunk.copy_(pairwise_sum(gathered))
    return tensor


def pairwise_sum(tensors: Iterable[Tensor]) -> Tensor:
    """Sum in the order of a balanced binary tree, ((0 + 1) + (2 + 3)) + ...; an odd one out moves up.

    So the sum over ranks of their partial sums has the bits of one over everything, where each
    holds a power of two of neighbours. Tensors may be overwritten; log2(n) of them are held.
    """
    levels: list[Tensor | None] = []
    for tensor in tensors:
        for level, waiting in enumerate(levels):
            if waiting is None:
                levels[level] = tensor
                break
            tensor, levels[level] = waiting.add_(tensor), None
        else:
            levels.append(tensor)
    held = [tensor for tensor in levels if tensor is not None]
    assert held, "nothing to add"
    total = held[0]
    for higher in held[1:]:
        total = higher.add_(total)
    return total


def all_gather(value: T) -> list[T]:
    """Every rank's `value`, in their order, on all ranks; any picklable object."""
    if not _several():
        return [value]
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


class Agreement:
    """Flags that any rank may raise; all ranks learn of them at the same call, one call later.

    The delay lets the exchange run beside the work between two calls, on the CPU, so that it never
    waits for a GPU. A single process learns of its own flags at once.
    """

    def __init__(self, n_flags: int) -> None:
        self._flags = torch.zeros(n_flags, dtype=torch.int32)
        self._pending: Any = None
        self._group: Any = dist.new_group(backend="gloo") if _several() and dist.get_backend() != "gloo" else None

    def exchange(self, flags: Sequence[bool]) -> list[bool]:
        """Send this rank's flags; returns which of those sent with the last call any rank had raised."""
        if not _several():
            return list(flags)
        if self._pending is not None:
            self._pending.wait()
        agreed = self._flags.bool().tolist()
        self._flags = torch.tensor(flags, dtype=torch.int32)
        self._pending = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def forget(self) -> None:
        """Drop what the last call sent: another run begins. All ranks call it."""
        self.exchange([False] * len(self._flags))


def data_parallel(model: nn.Module, device: torch.device) -> nn.Module:
    """Wrap for gradient averaging over ranks; the model itself where there is one.

    Buffers stay local: BatchNorm's running statistics are averaged explicitly.
    """
    if not _several():
        return model
    ids = [device.index] if device.type == "cuda" else None
    # torch renamed the option and warns about the old name.
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {name: False}
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True, **options)


def defer_reduction(model: nn.Module, defer: bool) -> AbstractContextManager[None]:
    """While active and `defer`, backward passes keep gradients local; wrap the forward pass too."""
    if defer and isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


def _die_with_agent() -> None:
    """A rank whose agent was killed would train on as an orphan."""
    signal_on_parents_death(signal.SIGKILL)
    # The signal does not come if the agent died before, while this process was still importing.
    parent = str(os.getppid())
    if os.environ.get(_LAUNCHER, parent) != parent:
        sys.exit("the process that started this rank is gone")


def _several() -> bool:
    if launched() and not dist.is_initialized():
        raise RuntimeError("started by torchrun outside `distributed.session()`")
    return dist.is_initialized() and dist.get_world_size() > 1


def threads_for(requested: int | Literal["auto"], workers_here: int) -> int:
    """CPU threads of each of `workers_here` processes on this node; `auto` shares out the cores."""
    return max(1, len(os.sched_getaffinity(0)) // workers_here) if requested == "auto" else requested
