"""What runs on a worker: a task with its threads pinned, once the worker has been found fit."""

import pickle
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]

from pipeline.errors import InputError

if TYPE_CHECKING:
    from distributed import Worker

_LIBRARIES = ("numpy", "scipy", "scikit-learn", "faiss-cpu", "openTSNE")


def run_task(payload: bytes, threads: int, wanted: tuple[tuple[str, str], ...]) -> Any:
    """The result of a pickled (task, item). Unpickling imports the task's libraries, so that pinning reaches them.

    Args:
        threads: BLAS and OpenMP threads.
        wanted: the items of `numerics` where the task was sent.

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
    here = numerics()
    for name in wanted.keys() & here.keys():
        if here[name] != wanted[name]:
            raise InputError(
                f"dask.scheduler: worker {dask_worker.address} has {name} {here[name]}, here {wanted[name]}, so "
                "results would differ; use workers of the same environment and kind of CPU"
            )


def numerics() -> dict[str, str]:
    """What decides a task's bits in the process that calls this, beside threads and arguments.

    Versions, and for each BLAS that is loaded so far the CPU that its kernels are for.
    """
    loaded = {Path(library["filepath"]).name: library.get("architecture", "") for library in threadpool_info()}
    return {**{name: version(name) for name in _LIBRARIES}, **loaded}
