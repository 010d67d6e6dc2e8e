"""Tasks on a pool, with results in order."""

import io
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import lru_cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from pipeline.errors import InputError
from pipeline.typing import Item, Result

if TYPE_CHECKING:
    from distributed import Client, Future, Worker


# Tasks as bytes; a memory-mapped array travels as its path and the place of its rows.


def dumps(value: object) -> bytes:
    """A pickle in which memory-mapped arrays are paths and places."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Memory-mapped arrays by path and place."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, np.memmap) or not value.flags.c_contiguous:
            return NotImplemented
        root = value
        while isinstance(root.base, np.memmap):
            root = root.base
        offset = root.offset + value.ctypes.data - root.ctypes.data
        return _map_rows, (str(value.filename), value.dtype.str, offset, value.shape)


def _map_rows(path: str, dtype: str, offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
    if not Path(path).exists():
        raise InputError(f"dask.scheduler: a worker does not see {path}; workers need the project's folder there too")
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)


# What runs on a worker: a task with its threads pinned, once the worker has been found fit.


_LIBRARIES = ("numpy", "scipy", "scikit-learn", "faiss-cpu", "openTSNE")


def run_task(payload: bytes, threads: int, wanted: tuple[tuple[str, str], ...]) -> Any:
    """The result of a pickled (task, item). Unpickling imports the task's libraries, so that pinning reaches them.

    Args:
        threads: BLAS and OpenMP threads.
        wanted: the items of `numerical_environment` where the task was sent.

    Raises:
        InputError: this worker would give other bits. Workers that join later than the others are found out here.
    """
    task, item = pickle.loads(payload)
    _check_once(wanted)
    with threadpool_limits(threads):
        return task(item)


@lru_cache(maxsize=1)
def _check_once(wanted: tuple[tuple[str, str], ...]) -> None:
    from distributed import get_worker

    check_worker(dict(wanted), get_worker())


def check_worker(wanted: Mapping[str, str], dask_worker: "Worker") -> None:
    """Refuse a worker that would give other bits, or that runs tasks of different thread counts at a time.

    Args:
        dask_worker: the one that this process is, by the name under which `Client.run` gives it.
    """
    threads = dask_worker.state.nthreads
    if threads != 1:
        raise InputError(
            f"dask.scheduler: worker {dask_worker.address} has {threads} threads, whose tasks would change each "
            "other's BLAS threads and random numbers; start it with `--nthreads 1`"
        )
    here = numerical_environment()
    for name in wanted.keys() & here.keys():
        if here[name] != wanted[name]:
            raise InputError(
                f"dask.scheduler: worker {dask_worker.address} has {name} {here[name]}, here {wanted[name]}, so "
                "results would differ; use workers of the same environment and kind of CPU"
            )


def numerical_environment() -> dict[str, str]:
    """What decides a task's bits in the process that calls this, beside threads and arguments.

    Versions, and for each BLAS that is loaded so far the CPU that its kernels are for.
    """
    loaded = {Path(library["filepath"]).name: library.get("architecture", "") for library in threadpool_info()}
    return {**{name: version(name) for name in _LIBRARIES}, **loaded}


# Results of tasks on a cluster's workers, in the order of the tasks, while workers join, die and leave.


_TASKS_PER_WORKER = 2  # tasks on their way per worker: none waits for work, and results do not pile up
_POLL_INTERVAL_S = 10.0  # who is there
# A worker that died is back by then: its nanny starts a process, which imports the libraries.
_NO_WORKERS_TIMEOUT_S = 60.0

CANNOT_IMPORT = (
    "dask.scheduler: a worker cannot import the project ({error}); start workers in its folder and environment"
)


def ordered_map(
    client: "Client",
    threads: int,
    on_worker_death: Callable[[], Any] | None,
    task: Callable[[Item], Result],
    items: Iterable[Item],
    /,
) -> Iterator[Result]:
    """Results in the order of `items`; tasks start now, some ahead of the result that is asked for."""
    wanted = tuple(sorted(numerical_environment().items()))
    # Some tasks are random and equal calls are rare, so none is looked up among earlier ones.
    sent = (client.submit(run_task, dumps((task, item)), threads, wanted, pure=False) for item in items)
    ahead = _TaskWindow(client, sent)
    ahead.send()
    return _results(ahead, on_worker_death)


def _results(ahead: "_TaskWindow", on_worker_death: Callable[[], Any] | None) -> Iterator[Any]:
    from distributed import KilledWorker

    while ahead.pending:
        future = ahead.pending.popleft()
        try:
            ahead.wait_for(future)
            result = future.result()
        except KilledWorker as error:
            if on_worker_death is None:
                raise InputError(f"dask: a worker died ({error}); give workers more memory or start fewer") from None
            result = on_worker_death()
        except CancelledError as error:
            raise InputError(f"dask.scheduler: the connection was lost ({error}); start the stage again") from None
        except ModuleNotFoundError as error:
            raise InputError(CANNOT_IMPORT.format(error=error)) from None
        ahead.send()
        yield result


class _TaskWindow:
    """The tasks on their way, as many as the workers that are there can use.

    Attributes:
        pending: in order.
    """

    def __init__(self, client: "Client", more: "Iterator[Future[Any]]") -> None:
        self._client, self._more = client, more
        self.pending: deque[Future[Any]] = deque()

    def send(self) -> None:
        """For those that have joined too."""
        # There is none for a moment where the last one died and comes back.
        wanted = _TASKS_PER_WORKER * max(1, self._workers())
        self.pending.extend(islice(self._more, max(0, wanted - len(self.pending))))

    def wait_for(self, future: "Future[Any]") -> None:
        """Until a task has ended, however long it takes, as long as there is anybody to do it."""
        from distributed import wait

        last_seen = time.monotonic()
        while not future.done():
            try:
                wait(future, timeout=_POLL_INTERVAL_S)
            except TimeoutError:
                if self._workers():
                    last_seen = time.monotonic()
                    self.send()
                elif time.monotonic() - last_seen > _NO_WORKERS_TIMEOUT_S:
                    raise InputError(
                        "dask.scheduler: no worker is left; start workers and the same command again"
                    ) from None

    def _workers(self) -> int:
        try:
            return len(self._client.nthreads())
        except OSError as error:
            raise InputError(f"dask.scheduler: it has ended ({error}); start it and the stage again") from None
