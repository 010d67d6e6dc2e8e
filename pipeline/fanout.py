"""Independent tasks in this process or on Dask's workers, with the same bits wherever they run.

What a task returns depends on its arguments, on the number of BLAS and OpenMP threads, and on the
libraries and the kind of CPU below them. Arguments and order are given, threads are pinned around
every task, and workers whose libraries or CPU are others are refused.
"""

import io
import logging
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from pipeline.errors import InputError
from pipeline.reduction.tasks import Item, Map, Result

if TYPE_CHECKING:
    from distributed import Client, Future

_ANSWER_S = 10  # for a scheduler, and for its first worker
_AHEAD = 2  # tasks on their way per worker: none waits for work, and results do not pile up
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "faiss-cpu", "openTSNE")


@contextmanager
def fan_out(
    scheduler: str,
    *,
    workers: int,
    threads: int,
    gpus: Sequence[str] = (),
    if_killed: Callable[[], Any] | None = None,
) -> Iterator[Map]:
    """An ordered map over independent tasks; also pins the threads of this process within the block.

    Tasks on workers start when the map is called, some ahead of the result that is asked for; in
    this process each starts when its result is asked for. A memory-mapped array among the arguments
    travels as its path and the place of its rows, everything else as a pickle: tasks are functions
    of a module, or `functools.partial` of them.

    Args:
        scheduler: `none`, `local`, or `tcp://host:port`; see `DaskConfig`.
        workers: processes of `local`.
        threads: BLAS and OpenMP threads of every task, and of this process.
        gpus: of this machine, as CUDA_VISIBLE_DEVICES names them. Each worker of `local` sees one, in turn; those of an
            address see what they were started with.
        if_killed: makes the result of a task of which several workers died; without it, that is an error.

    Raises:
        InputError: no scheduler or no worker answers, workers differ from this process, or several died of a task.
    """
    with threadpool_limits(threads):
        if scheduler == "none":
            yield map
        elif scheduler == "local":
            with _local_cluster(workers, gpus) as client:
                yield partial(_map, client, threads, if_killed)
        else:
            with _connected(scheduler) as client:
                yield partial(_map, client, threads, if_killed)


@contextmanager
def _local_cluster(workers: int, gpus: Sequence[str]) -> Iterator["Client"]:
    from distributed import Client, LocalCluster, Nanny

    def nanny(scheduler: str, *, name: int, **options: Any) -> Nanny:
        # As long as a process has not asked CUDA for anything, this decides what it sees.
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
            dashboard_address=None,
            memory_limit=0,
            silence_logs=logging.ERROR,  # not that a worker took its time to end
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
        client = Client(address, timeout=_ANSWER_S)
    except (OSError, ValueError) as error:
        raise InputError(f"dask.scheduler: no scheduler answers at {address} ({error}); {start}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_ANSWER_S)
        except TimeoutError:
            raise InputError(f"dask.scheduler: the scheduler at {address} has no workers; {start}") from None
        _check_workers(client)
        yield client


def _check_workers(client: "Client") -> None:
    """Refuse workers that would give other bits, or that run tasks of different thread counts at a time."""
    for worker, threads in client.nthreads().items():
        if threads != 1:
            raise InputError(
                f"dask.scheduler: worker {worker} has {threads} threads, whose tasks would change each other's BLAS "
                "threads; start it with `--nthreads 1`"
            )
    try:
        answers = client.run(_numerics)
    except ModuleNotFoundError as error:
        raise InputError(
            f"dask.scheduler: a worker cannot import the project ({error}); start workers in its folder and environment"
        ) from None
    here = _numerics()
    for worker, there in answers.items():
        for name in here.keys() & there.keys():
            if there[name] != here[name]:
                raise InputError(
                    f"dask.scheduler: worker {worker} has {name} {there[name]}, here {here[name]}, so results would "
                    "differ; use workers of the same environment and kind of CPU"
                )


def _numerics() -> dict[str, str]:
    """What decides a task's bits in the process that calls this, beside threads and arguments.

    Versions, and for each BLAS that is loaded so far the CPU that its kernels are for.
    """
    loaded = {Path(library["filepath"]).name: library.get("architecture", "") for library in threadpool_info()}
    return {**{name: version(name) for name in _LIBRARIES}, **loaded}


def _map(
    client: "Client",
    threads: int,
    if_killed: Callable[[], Any] | None,
    task: Callable[[Item], Result],
    items: Iterable[Item],
    /,
) -> Iterator[Result]:
    # Some tasks are random and equal calls are rare, so none is looked up among earlier ones.
    sent = (client.submit(_run, _dumps((task, item)), threads, pure=False) for item in items)
    # There is none for a moment where the last one died and comes back.
    window = _AHEAD * max(1, len(client.nthreads()))
    return _in_order(client, deque(islice(sent, window)), sent, if_killed)


def _in_order(
    client: "Client",
    pending: "deque[Future[Any]]",
    more: "Iterator[Future[Any]]",
    if_killed: Callable[[], Any] | None,
) -> Iterator[Any]:
    from distributed import KilledWorker

    while pending:
        future = pending.popleft()
        try:
            _wait(client, future)
            result = future.result()
        except KilledWorker as error:
            if if_killed is None:
                raise InputError(f"dask: a worker died ({error}); give workers more memory or start fewer") from None
            result = if_killed()
        except CancelledError as error:
            raise InputError(f"dask.scheduler: the connection was lost ({error}); start the stage again") from None
        pending.extend(islice(more, 1))
        yield result


def _wait(client: "Client", future: "Future[Any]") -> None:
    """Until a task has ended, however long it takes, as long as there is anybody to do it."""
    from distributed import wait

    while not future.done():
        try:
            wait(future, timeout=_ANSWER_S)
        except TimeoutError:
            try:
                left = client.nthreads()
            except OSError as error:
                raise InputError(f"dask.scheduler: it has ended ({error}); start it and the stage again") from None
            if not left:
                raise InputError("dask.scheduler: no worker is left; start workers and the stage again") from None


def _run(payload: bytes, threads: int) -> Any:
    """On a worker: unpickling imports the task's libraries, so that pinning reaches them."""
    task, item = pickle.loads(payload)
    with threadpool_limits(threads):
        return task(item)


def _dumps(value: object) -> bytes:
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
        return _rows_of_file, (str(value.filename), value.dtype.str, offset, value.shape)


def _rows_of_file(path: str, dtype: str, offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
    if not Path(path).exists():
        raise InputError(f"dask.scheduler: a worker does not see {path}; workers need the project's folder there too")
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
