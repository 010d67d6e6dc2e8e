"""A search whose epochs are made up: what it asks for again, and what it writes down."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np

from pipeline.config.tuning import Tuning
from pipeline.run_log import RunLog
from pipeline.tuning.advance import EpochResult, EpochTask
from pipeline.tuning.journal import Journal
from pipeline.tuning.search import Search
from pipeline.tuning.source import Source
from pipeline.tuning.trial import Rows, TrialRun

NOBODY = np.zeros(1, dtype=bool)


def search(
    folder: Path, results: Callable[[list[EpochTask]], list[EpochResult]], **changes: Any
) -> tuple[Search, list[list[int]]]:
    """A search whose rounds of epochs end with `results`, and, for each of these, the trials asked for."""
    asked: list[list[int]] = []

    def trained(_: Callable[[EpochTask], EpochResult], tasks: Iterable[EpochTask]) -> list[EpochResult]:
        given = list(tasks)
        asked.append([int(task.folder.name) for task in given])
        return results(given)

    tree: dict[str, Any] = {
        "study": "tiny", "space": {"learning_rates": {"uniform": [0.0, 1.0]}}, "sampler": {"name": "random"},
        "trials": 3, "epochs": 1, "rule": {"name": "none"}, **changes,
    }  # fmt: skip
    made = Search(
        Tuning.model_validate(tree, strict=False),
        run_of=lambda values: cast("TrialRun", values),
        rows=Rows(trained=NOBODY, judged=NOBODY),
        source=cast("Source", None),
        journal=Journal(folder / "journal.log"),
        checkpoints=folder,
        map_tasks=trained,
        log=RunLog.silent(),
    )
    return made, asked


def test_a_trial_whose_worker_dies_has_failed_and_those_that_waited_behind_it_have_not(tmp_path: Path) -> None:
    def trained(tasks: list[EpochTask]) -> list[EpochResult]:
        trials = [int(task.folder.name) for task in tasks]
        culprit = EpochResult(accuracy=None, reason="killed", seconds=0.0, killed=True)
        well = [EpochResult(accuracy=trial / 10, seconds=1.0) for trial in trials]
        # Trial 1 kills whoever trains it; trial 2 was in the queue of the same worker.
        return [
            culprit if trial == 1 or (1 in trials and trial == 2) else one
            for trial, one in zip(trials, well, strict=True)
        ]

    made, asked = search(tmp_path, trained)
    outcome = made.run()
    assert asked == [[0, 1, 2], [1], [2]]
    assert (outcome.winner, outcome.failed) == (2, (False, True, False))
    assert made.reasons == ["", "killed", ""]
