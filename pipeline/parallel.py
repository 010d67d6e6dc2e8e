"""Run independent tasks in this process or on Dask's workers, with the same bits on each.

The result of a task depends on its arguments, on the number of BLAS and OpenMP threads, and on the libraries and the
kind of CPU. So arguments and order are fixed, and each task runs with a fixed number of threads. Workers with other
libraries or another CPU are rejected, also those that join later.
"""

import io
import logging
import pickle
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from pipeline.errors import InputError
from pipeline.typing import Item, MapFn, Result

if TYPE_CHECKING:
    from distributed import Client, Future, Worker

_LIBRARIES = ("numpy", "scipy", "scikit-learn", "faiss-cpu", "openTSNE")
_TASKS_PER_WORKER = 2  # pending tasks per worker: no worker idles, and results do not accumulate
_POLL_INTERVAL_S = 10.0  # between checks for workers
# Long enough for a worker's nanny to restart it and for its imports.
_NO_WORKERS_TIMEOUT_S = 60.0
_CANNOT_IMPORT = (
    "dask.scheduler: a worker cannot import the project ({error}); start workers in its folder and environment"
)
_CONNECT_TIMEOUT_S = 10  # for a scheduler, and for its first worker


def dumps(value: object) -> bytes:
    """Pickle a value; a memory-mapped array becomes its path and the offset of its rows."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """A pickler that stores memory-mapped arrays by path and offset."""

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
        raise InputError(
            f"dask.scheduler: a worker does not see {path}; give workers the project's folder under the same path"
        )
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)


def run_task(payload: bytes, threads: int, expected: tuple[tuple[str, str], ...]) -> Any:
    """Run a pickled (task, item) on a worker. Unpickling imports the task's libraries, so that pinning reaches them.

    Args:
        threads: BLAS and OpenMP threads.
        expected: the items of `numerical_environment` in the sending process.

    Raises:
        InputError: this worker would give other bits. Workers that join later are checked too.
    """
    task, item = pickle.loads(payload)
    _check_once(expected)
    with threadpool_limits(threads):
        return task(item)


@lru_cache(maxsize=1)
def _check_once(expected: tuple[tuple[str, str], ...]) -> None:
    from distributed import get_worker

    check_worker(dict(expected), get_worker())


def check_worker(expected: Mapping[str, str], dask_worker: "Worker") -> None:
    """Check that a worker gives the same bits, and runs one task at a time.

    Args:
        dask_worker: this process's worker; `Client.run` passes it by this name.

    Raises:
        InputError: it has several threads, other libraries or another kind of CPU.
    """
    threads = dask_worker.state.nthreads
    if threads != 1:
        raise InputError(
            f"dask.scheduler: worker {dask_worker.address} has {threads} threads, whose tasks would change each "
            "other's BLAS threads and random numbers; start it with `--nthreads 1`"
        )
    actual = numerical_environment()
    for name in expected.keys() & actual.keys():
        if actual[name] != expected[name]:
            raise InputError(
                f"dask.scheduler: worker {dask_worker.address} has {name} {actual[name]}, not {expected[name]}, so "
                "results would differ; use workers of the same environment and kind of CPU"
            )


def numerical_environment() -> dict[str, str]:
    """Return the properties of this process that decide a task's bits, in addition to threads and arguments.

    These are versions of libraries, and for each loaded BLAS the CPU that its kernels are for.
    """
    loaded = {Path(library["filepath"]).name: library.get("architecture", "") for library in threadpool_info()}
    return {**{name: version(name) for name in _LIBRARIES}, **loaded}


def ordered_map(
    client: "Client",
    threads: int,
    on_worker_death: Callable[[], Any] | None,
    task: Callable[[Item], Result],
    items: Iterable[Item],
    /,
) -> Iterator[Result]:
    """Return results in the order of `items`; tasks start now, some before their result is requested."""
    expected = tuple(sorted(numerical_environment().items()))
    # Not pure: some tasks are random, and equal calls are rare, so Dask must not reuse earlier results.
    futures = (client.submit(run_task, dumps((task, item)), threads, expected, pure=False) for item in items)
    window = _TaskWindow(client, futures)
    window.fill()
    return _results(window, on_worker_death)


def _results(window: "_TaskWindow", on_worker_death: Callable[[], Any] | None) -> Iterator[Any]:
    from distributed import KilledWorker

    while window.pending:
        future = window.pending.popleft()
        try:
            window.wait_for(future)
            result = future.result()
        except KilledWorker as error:
            if on_worker_death is None:
                raise InputError(f"dask: a worker died ({error}); give workers more memory or start fewer") from None
            result = on_worker_death()
        except CancelledError as error:
            raise InputError(f"dask.scheduler: the connection was lost ({error}); start the stage again") from None
        except ModuleNotFoundError as error:
            raise InputError(_CANNOT_IMPORT.format(error=error)) from None
        window.fill()
        yield result


class _TaskWindow:
    """The pending tasks, as many as the connected workers can use.

    Attributes:
        pending: in order.
    """

    def __init__(self, client: "Client", futures: "Iterator[Future[Any]]") -> None:
        self._client, self._futures = client, futures
        self.pending: deque[Future[Any]] = deque()

    def fill(self) -> None:
        """Send tasks up to the limit, including those for workers that have joined."""
        # There is briefly no worker while the last one restarts.
        limit = _TASKS_PER_WORKER * max(1, self._workers())
        self.pending.extend(islice(self._futures, max(0, limit - len(self.pending))))

    def wait_for(self, future: "Future[Any]") -> None:
        """Wait until a task has ended, without a time limit while any worker is connected.

        Raises:
            InputError: the scheduler has ended, or no worker has been connected for `_NO_WORKERS_TIMEOUT_S`.
        """
        from distributed import wait

        last_seen = time.monotonic()
        while not future.done():
            try:
                wait(future, timeout=_POLL_INTERVAL_S)
            except TimeoutError:
                if self._workers():
                    last_seen = time.monotonic()
                    self.fill()
                elif time.monotonic() - last_seen > _NO_WORKERS_TIMEOUT_S:
                    raise InputError(
                        "dask.scheduler: no worker is left; start workers and the same command again"
                    ) from None

    def _workers(self) -> int:
        try:
            return len(self._client.nthreads())
        except OSError as error:
            raise InputError(
                f"dask.scheduler: the scheduler has ended ({error}); start it and the stage again"
            ) from None


@contextmanager
def task_pool(
    scheduler: str,
    *,
    workers: int,
    threads: int,
    gpus: Sequence[str] = (),
    on_worker_death: Callable[[], Any] | None = None,
) -> Iterator[MapFn]:
    """Yield an ordered map over independent tasks, and pin the threads of this process within the block.

    Tasks on workers start when the map is called, some before their result is requested. In this process each task
    starts when its result is requested. Memory-mapped arrays are sent as path and offset, all other arguments as
    pickles: tasks are functions of a module, or `functools.partial` of them.

    Args:
        scheduler: `none`, `local`, or `tcp://host:port`; see `DaskConfig`.
        workers: processes of `local`.
        threads: BLAS and OpenMP threads of every task, and of this process.
        gpus: groups of this machine's GPUs, as CUDA_VISIBLE_DEVICES names them. Each worker of `local` sees one
            group, in turn; workers of an address see those that they were started with.
        on_worker_death: returns the result of a task that killed several workers; without it, that is an error.

    Raises:
        InputError: no scheduler or no worker answers, workers differ from this process, or several died of a task.
    """
    with threadpool_limits(threads):
        if scheduler == "none":
            yield map
        elif scheduler == "local":
            with _local_cluster(workers, gpus) as client:
                yield partial(ordered_map, client, threads, on_worker_death)
        else:
            with _connected(scheduler) as client:
                yield partial(ordered_map, client, threads, on_worker_death)


@contextmanager
def _local_cluster(workers: int, gpus: Sequence[str]) -> Iterator["Client"]:
    from distributed import Client, LocalCluster, Nanny

    def nanny(scheduler: str, *, name: int, **options: Any) -> Nanny:
        # The variable takes effect because the process has not initialized CUDA yet.
        env = {"CUDA_VISIBLE_DEVICES": gpus[name % len(gpus)]} if gpus else {}
        return Nanny(scheduler, name=name, env=env, **options)

    with (
        tempfile.TemporaryDirectory() as scratch,
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            worker_class=nanny,
            host="127.0.0.1",
            # Dask always starts an HTTP server, and another command may use its default port.
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            memory_limit=0,
            silence_logs=logging.ERROR,  # no warnings that a worker ended slowly
            local_directory=scratch,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def _connected(address: str) -> Iterator["Client"]:
    from distributed import Client

    start = f"start `dask scheduler` and `dask worker {address} --nthreads 1` there, or set dask.scheduler: none"
    try:
        client = Client(address, timeout=_CONNECT_TIMEOUT_S)
    except (OSError, ValueError) as error:
        raise InputError(f"dask.scheduler: no scheduler answers at {address} ({error}); {start}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_CONNECT_TIMEOUT_S)
        except TimeoutError:
            raise InputError(f"dask.scheduler: the scheduler at {address} has no workers; {start}") from None
        _check_workers(client)
        yield client


def _check_workers(client: "Client") -> None:
    """Check the workers that are connected before any task is sent; `run_task` checks workers that join later."""
    for result in client.run(check_worker, numerical_environment(), on_error="return").values():
        if isinstance(result, InputError):
            raise result
        # A worker without the project cannot unpickle the error. A worker that has just left needs no check.
        if isinstance(result, Exception) and not isinstance(result, OSError):
            raise InputError(_CANNOT_IMPORT.format(error=result))
