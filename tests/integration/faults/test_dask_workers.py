"""Dask's workers join and leave during a search, and its results stay the same."""

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from tests.fixtures.dask_cluster import running_pool
from tests.fixtures.interrupted_study import HOOKS
from tests.fixtures.training import kill, run, start, wait_until
from tests.fixtures.tuning import command, results_of, write_search
from tests.integration.faults.test_tune_kills import reported

# More epochs than the workers train before all have joined: until then each step takes a second.
SEARCH: dict[str, Any] = {
    "trials": 6,
    "max_concurrent_trials": None,
    "epochs": 6,
    "pruner": {"name": "threshold", "amount": 0.4, "kind": "absolute"},
}
_JOINS_WITHIN_S = 600.0


def steps_of(record: Path) -> list[str]:
    """Return `<trial> <checkpoint>` for each step that a worker has saved."""
    return record.read_text(encoding="utf-8").splitlines() if record.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_workers_that_join_and_leave_a_search_change_no_byte(tmp_path: Path) -> None:
    """The search has four workers, two, one, and four again."""
    undisturbed = write_search(tmp_path / "undisturbed", **SEARCH)
    done = run(command(tmp_path / "undisturbed"), timeout=_JOINS_WITHIN_S)
    assert done.returncode == 0, done.stderr

    folder, slow = tmp_path / "moving", tmp_path / "slow"
    records = [tmp_path / f"worker-{number}" for number in range(7)]

    def environ(worker: int) -> Mapping[str, str]:
        return {"PYTHONPATH": str(HOOKS), "SLOW": str(slow), "SAVED": str(records[worker]), "OMP_NUM_THREADS": "1"}

    slow.touch()
    with running_pool(forked=True) as pool:
        workers = [pool.join(environ=environ(number)) for number in range(4)]
        pool.wait()
        with Client(pool.address) as client:
            client.wait_for_workers(4, timeout=_JOINS_WITHIN_S)
        data = write_search(folder, dask={"scheduler": pool.address}, **{**SEARCH, "scheduler": "parallel"})
        search = start(command(folder))

        def until(condition: Callable[[], object]) -> None:
            wait_until(condition, search, timeout=_JOINS_WITHIN_S)

        def train(numbers: Sequence[int]) -> None:
            """Wait until each of these workers has saved a further step."""
            before = {number: len(steps_of(records[number])) for number in numbers}
            until(lambda: all(len(steps_of(records[number])) > steps for number, steps in before.items()))

        def leave(numbers: Sequence[int]) -> None:
            for number in numbers:
                workers[number].send_signal(signal.SIGTERM)
            until(lambda: all(workers[number].poll() is not None for number in numbers))

        try:
            train([0, 1, 2, 3])
            leave([0, 1])
            train([2, 3])
            leave([2])
            train([3])
            for number in (4, 5, 6):
                pool.join(environ=environ(number))
            train([3, 4, 5, 6])
            slow.unlink()
            _, said = search.communicate(timeout=_JOINS_WITHIN_S)
        finally:
            kill(search)
    assert search.returncode == 0, said
    assert set(reported(folder).values()) == {1}
    # A worker that leaves ends its epoch, or another worker resumes from its last checkpoint.
    steps = [step.partition(".")[0] for record in records for step in steps_of(record)]
    assert len(steps) <= len(set(steps)) + 3
    assert results_of(data) == results_of(undisturbed)
