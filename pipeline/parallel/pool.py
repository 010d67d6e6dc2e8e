"""Pools of workers: none, local processes, or a dask cluster."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from pipeline.errors import InputError
from pipeline.parallel.worker import CANNOT_IMPORT, check_worker, numerical_environment, ordered_map
from pipeline.typing import MapFn

if TYPE_CHECKING:
    from distributed import Client


_CONNECT_TIMEOUT_S = 10  # for a scheduler, and for its first worker


@contextmanager
def task_pool(
    scheduler: str,
    *,
    workers: int,
    threads: int,
    gpus: Sequence[str] = (),
    on_worker_death: Callable[[], Any] | None = None,
) -> Iterator[MapFn]:
    """An ordered map over independent tasks; also pins the threads of this process within the block.

    Tasks on workers start when the map is called, some ahead of the result that is asked for; in
    this process each starts when its result is asked for. A memory-mapped array among the arguments
    travels as its path and the place of its rows, everything else as a pickle: tasks are functions
    of a module, or `functools.partial` of them.

    Args:
        scheduler: `none`, `local`, or `tcp://host:port`; see `DaskConfig`.
        workers: processes of `local`.
        threads: BLAS and OpenMP threads of every task, and of this process.
        gpus: shares of this machine's, one or more, as CUDA_VISIBLE_DEVICES names them. Each worker of `local` sees a
            share, in turn; those of an address see what they were started with.
        on_worker_death: makes the result of a task of which several workers died; without it, that is an error.

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
            # Dask's HTTP server cannot be left out, and its own port may be that of another command.
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
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
    """Of those that are there before anything is sent; who joins later is checked with its first task."""
    for found in client.run(check_worker, numerical_environment(), on_error="return").values():
        if isinstance(found, InputError):
            raise found
        # Without the project a worker cannot even name the error. One that left in this moment is not to be checked.
        if isinstance(found, Exception) and not isinstance(found, OSError):
            raise InputError(CANNOT_IMPORT.format(error=found))
