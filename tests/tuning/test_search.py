"""A search whose epochs are made up: what it asks for again, and what it writes down."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pipeline.config.tuning import Tuning
from pipeline.run_log import RunLog
from pipeline.tuning.advance import EpochResult, EpochTask
from pipeline.tuning.journal import Journal
from pipeline.tuning.race import Outcome
from pipeline.tuning.results import Found
from pipeline.tuning.search import Search, to_finish
from pipeline.tuning.source import Source
from pipeline.tuning.trial import Rows, TrialRun

NOBODY = np.zeros(1, dtype=bool)


def tuning_of(**changes: Any) -> Tuning:
    tree: dict[str, Any] = {
        "study": "tiny", "space": {"learning_rates": {"uniform": [0.0, 1.0]}}, "sampler": {"name": "random"},
        "trials": 3, "epochs": 1, "rule": {"name": "none"}, **changes,
    }  # fmt: skip
    return Tuning.model_validate(tree, strict=False)


def search(
    folder: Path, tuning: Tuning, results: Callable[[list[EpochTask]], list[EpochResult]]
) -> tuple[Search, list[list[int]]]:
    """A search whose rounds of epochs end with `results`, and, for each of these, the trials asked for."""
    asked: list[list[int]] = []

    def trained(_: Callable[[EpochTask], EpochResult], tasks: Iterable[EpochTask]) -> list[EpochResult]:
        given = list(tasks)
        asked.append([int(task.folder.name) for task in given])
        return results(given)

    made = Search(
        tuning,
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

    made, asked = search(tmp_path, tuning_of(), trained)
    outcome = made.run()
    assert asked == [[0, 1, 2], [1], [2]]
    assert (outcome.winner, outcome.failed) == (2, (False, True, False))
    assert made.reasons == ["", "killed", ""]


def test_a_winner_that_fails_on_its_way_to_the_end_stays_the_winner_and_no_late_bloomer_is_told(tmp_path: Path) -> None:
    def trained(tasks: list[EpochTask]) -> list[EpochResult]:
        curves: dict[int, list[float | None]] = {0: [0.5, None], 1: [0.3, 0.9]}
        found = [curves[int(task.folder.name)][task.epoch - 1] for task in tasks]
        return [EpochResult(accuracy=one, reason="" if one else "diverged", seconds=1.0) for one in found]

    tuning = tuning_of(trials=2, epochs=2, rule={"name": "lead", "kind": "absolute"}, finish=1)
    made, _ = search(tmp_path, tuning, trained)
    outcome = made.run()
    assert (outcome.winner, outcome.epochs) == (0, (1, 1))
    finished = made.finish(to_finish(tuning, outcome))
    found = Found(
        tuning=tuning,
        outcome=outcome,
        values=made.values,
        accuracies=made.accuracies,
        reasons=made.reasons,
        finished=finished,
        failed_afterwards=made.failed_afterwards,
    )
    summary = found.summary()
    assert summary["finished_afterwards"] == [1]
    assert summary["late_bloomers"] is None
    assert summary["failed_afterwards"] == [{"trial": 0, "reason": "diverged"}]
    assert found.leaderboard()["reason"].to_pylist() == ["", ""]


@pytest.mark.parametrize(
    ("finish", "epochs", "expected"),
    [
        (0, (4, 4, 1, 4), [3, 1]),  # trial 1 ran to the end before trial 3 put it out: that costs nothing to know
        (1, (4, 4, 1, 4), [3, 1, 2]),
        (0, (4, 4, 1, 2), []),  # the winner's end is not known
        (2, (4, 4, 1, 2), [3, 1, 2]),
        (0, (4, 2, 1, 4), []),
    ],
)
def test_curves_that_are_whole_count_always(finish: int, epochs: tuple[int, ...], expected: list[int]) -> None:
    tuning = tuning_of(trials=4, epochs=4, rule={"name": "lead", "kind": "absolute"}, finish=finish)
    outcome = Outcome(winner=3, epochs=epochs, eliminated_after=(None, 2, 1, None), failed=(False,) * 4)
    assert to_finish(tuning, outcome) == expected
