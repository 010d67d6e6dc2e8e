"""Tasks in this process, on a local cluster and on a separate scheduler have the same bits."""

import os
import pickle
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import dask
import faiss
import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_info

from pipeline.errors import InputError
from pipeline.parallel import _TaskWindow, dumps, task_pool
from pipeline.reduction.pca import fit_pca
from pipeline.typing import row_blocks
from tests.fixtures.dask_cluster import Pool, running_pool, running_scheduler
from tests.fixtures.loopback import free_port
from tests.fixtures.projects import ROOT

if TYPE_CHECKING:
    from distributed import Client, Future

THREADS = 2


def _features(folder: Path, n: int = 20_000, dimensions: int = 40) -> np.memmap:
    """More than two blocks of rows in a file."""
    np.save(folder / "features.npy", np.random.default_rng(0).normal(size=(n, dimensions)).astype(np.float32) + 3)
    mapped = np.load(folder / "features.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    return mapped


def _threads(_: int) -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info()} | {faiss.omp_get_max_threads()}


def _fail(item: int) -> int:
    if item == 2:
        raise InputError("reduce.something: 2 is wrong")
    return item


def _results(scheduler: str, features: NDArray[np.float32]) -> dict[str, bytes]:
    """What tasks made of features, and the threads they ran on."""
    with task_pool(scheduler, workers=2, threads=THREADS) as run:
        axes = fit_pca(features, 5, map_fn=run)
        result = {
            "axes": axes.axes.tobytes(),
            "variances": axes.explained_variance_ratio.tobytes(),
            "components": axes.transform(features, map_fn=run).tobytes(),
        }
        for threads in run(_threads, range(6)):
            assert threads == {THREADS}
        assert list(run(str, range(50))) == [str(item) for item in range(50)]
        with pytest.raises(InputError) as raised:
            list(run(_fail, range(4)))
        assert raised.value.key == "reduce.something"
    return result


@pytest.mark.slow
def test_bits_do_not_depend_on_where_tasks_run(tmp_path: Path) -> None:
    features = _features(tmp_path)
    expected = _results("none", features)
    assert _results("local", features) == expected
    with running_scheduler(workers=2) as address:
        assert _results(address, features) == expected


def test_a_memory_map_travels_as_its_path(tmp_path: Path) -> None:
    features = _features(tmp_path)
    full, *_ = blocks = row_blocks(features)
    assert len(dumps((partial(np.add, full), blocks))) < 2000
    assert len(dumps(np.asarray(full))) > full.nbytes


@pytest.mark.parametrize("rows", [slice(0, 5), slice(7, 9), slice(None), slice(19_999, None)])
def test_rows_of_a_memory_map_arrive_as_they_are(tmp_path: Path, rows: slice) -> None:
    features = _features(tmp_path)
    for view in (features[rows], features[3:][rows], features[rows, 2:5], features[rows].T):
        np.testing.assert_array_equal(pickle.loads(dumps(view)), view)


def test_an_address_without_a_scheduler_is_named_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.parallel._CONNECT_TIMEOUT_S", 1)
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(InputError) as raised, task_pool(address, workers=1, threads=1):
        pass
    assert raised.value.key == "dask.scheduler"
    assert f" {address} " in str(raised.value)


@pytest.mark.slow
def test_a_scheduler_without_workers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.parallel._CONNECT_TIMEOUT_S", 1)
    with (
        running_scheduler(workers=0) as address,
        pytest.raises(InputError) as raised,
        task_pool(address, workers=1, threads=1),
    ):
        pass
    assert raised.value.key == "dask.scheduler"
    assert f"dask worker {address}" in str(raised.value)


@pytest.mark.slow
def test_workers_that_would_give_other_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        running_scheduler(workers=1, threads=2) as address,
        pytest.raises(InputError) as of_threads,
        task_pool(address, workers=1, threads=1),
    ):
        pass
    # The option of Dask's workers that they need.
    assert re.findall(r"--nthreads (\d+)", str(of_threads.value)) == ["1"]
    monkeypatch.setattr("pipeline.parallel.version", lambda name: "0.1" if name == "numpy" else version(name))
    with (
        running_scheduler(workers=1) as address,
        pytest.raises(InputError) as of_versions,
        task_pool(address, workers=1, threads=1),
    ):
        pass
    assert {version("numpy"), "0.1"} <= set(re.findall(r"\d+(?:\.\d+)+", str(of_versions.value)))


@pytest.mark.slow
def test_a_task_whose_workers_are_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.parallel._POLL_INTERVAL_S", 0.5)
    monkeypatch.setattr("pipeline.parallel._NO_WORKERS_TIMEOUT_S", 2.0)
    with (
        running_scheduler(workers=1) as address,
        pytest.raises(InputError) as raised,
        task_pool(address, workers=1, threads=1) as run,
    ):
        list(run(os._exit, [3]))
    assert raised.value.key == "dask.scheduler"


def _work_while_one_joins(pool: Pool, *, at_once: bool = False, **joining: Any) -> None:
    """Minutes of tasks on a fit worker, and after the first of them, or `at_once`, another that is not."""
    pool.join(**joining if at_once else {})
    pool.wait()
    with task_pool(pool.address, workers=1, threads=1) as run:
        for number, _ in enumerate(run(_rest, repeat(0.1, 2000))):
            if number == 0:
                pool.join(**joining)


def _rest(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.slow
def test_a_worker_that_joins_later_with_two_threads_is_refused() -> None:
    with running_pool() as pool, pytest.raises(InputError) as refused:
        _work_while_one_joins(pool, threads=2)
    assert re.findall(r"--nthreads (\d+)", str(refused.value)) == ["1"]


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["tests", "pipeline"])
def test_a_worker_that_cannot_import_a_task_is_refused(lacking: str, tmp_path: Path) -> None:
    """Wherever the project may be installed. A worker that lacks a part of it and joins later leaves."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / f"{lacking}.py").write_text("raise ModuleNotFoundError('no project here')")
    environ = {"PYTHONPATH": str(tmp_path / "bare")}
    # What the worker's own error says.
    with running_pool(tmp_path) as pool, pytest.raises(InputError, match="no project here"):
        _work_while_one_joins(pool, at_once=lacking == "pipeline", environ=environ)


@pytest.mark.slow
def test_a_moment_without_workers_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.parallel._POLL_INTERVAL_S", 0.2)
    with running_pool() as pool:
        first = pool.join()
        pool.wait()
        with task_pool(pool.address, workers=1, threads=1) as run:
            results = run(time.sleep, [1.0, 0.0])
            first.kill()
            pool.join()
            assert list(results) == [None, None]


def test_as_many_tasks_are_sent_as_the_joined_workers_can_use() -> None:
    workers: dict[str, int] = {}
    client = cast("Client", SimpleNamespace(nthreads=lambda: workers))
    ahead = _TaskWindow(client, cast("Iterator[Future[Any]]", iter(range(100))))
    on_their_way = []
    for joined in (0, 1, 16, 4):
        workers = {str(number): 1 for number in range(joined)}
        ahead.fill()
        on_their_way.append(len(ahead.pending))
    assert on_their_way == [2, 2, 32, 32]


@pytest.mark.slow
def test_workers_take_turns_at_the_gpus() -> None:
    with task_pool("local", workers=3, threads=1, gpus=["4", "GPU-8f6"]) as run:
        seen = dict(run(_place_and_gpu, range(12)))
    assert sorted(seen.values()) == ["4", "4", "GPU-8f6"]


@pytest.mark.slow
def test_a_local_cluster_does_without_the_port_of_another() -> None:
    with socket.socket() as taken:
        with suppress(OSError):  # somebody has Dask's own one already
            taken.bind(("0.0.0.0", 8787))
            taken.listen()
        with task_pool("local", workers=1, threads=1) as run:
            assert list(run(abs, [-3])) == [3]


def _place_and_gpu(_: int) -> tuple[int, str]:
    time.sleep(0.2)  # so that all workers have a share
    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]


@pytest.mark.slow
def test_a_task_that_kills_its_worker_may_have_a_result() -> None:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        task_pool("local", workers=1, threads=1, on_worker_death=lambda: "died") as run,
    ):
        assert list(run(_end, [3])) == ["died"]
        assert list(run(abs, [-3])) == [3]


def _end(status: int) -> str:
    os._exit(status)


def test_dask_is_not_imported_for_a_plain_loop() -> None:
    program = (
        "import sys; from pipeline.parallel import task_pool\n"
        "with task_pool('none', workers=1, threads=1) as run: assert list(run(abs, [-1])) == [1]\n"
        "assert not {'dask', 'distributed'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
