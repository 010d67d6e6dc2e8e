"""Pools of workers: this process, local processes or a Dask cluster."""

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
            raise InputError(CANNOT_IMPORT.format(error=result))
