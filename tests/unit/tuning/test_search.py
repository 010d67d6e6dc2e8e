"""Searches with invented epochs: repeated steps, and the records on disk."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pipeline.config.tuning import Tuning
from pipeline.errors import InputError
from pipeline.run_log import RunLog
from pipeline.training.checkpointing import Checkpoints
from pipeline.tuning.results import SearchResult
from pipeline.tuning.scheduler import SearchOutcome
from pipeline.tuning.search import Search, count_trials, trials_to_resume
from pipeline.tuning.sources import TrialData
from pipeline.tuning.storage import TrialStorage
from pipeline.tuning.trial import TrainValRows, TrialRun
from pipeline.tuning.worker import EpochResult, EpochTask

NOBODY = np.zeros(1, dtype=bool)
TPE = {"name": "tpe", "n_startup_trials": 4}


def tuning_of(**changes: Any) -> Tuning:
    tree: dict[str, Any] = {
        "study": "tiny", "space": {"learning_rates": {"uniform": [0.0, 1.0]}}, "sampler": {"name": "random"},
        "trials": 3, "epochs": 1, "pruner": {"name": "none"}, **changes,
    }  # fmt: skip
    return Tuning.model_validate(tree, strict=False)


def made_search(folder: Path, tuning: Tuning, make_run: Callable[[Any], TrialRun], map_tasks: Any) -> Search:
    """A search without images."""
    return Search(
        tuning,
        make_run=make_run,
        rows=TrainValRows(train=NOBODY, val=NOBODY, labels=np.zeros(len(NOBODY), dtype=np.int64)),
        source=cast("TrialData", None),
        storage=TrialStorage(folder / "journal.log"),
        checkpoints=folder,
        map_tasks=map_tasks,
        log=RunLog.silent(),
    )


def search(
    folder: Path, tuning: Tuning, results: Callable[[list[EpochTask]], Iterable[EpochResult]]
) -> tuple[Search, list[list[int]]]:
    """A search whose rounds of epochs end with `results`, and, for each of these, the requested trials."""
    requested: list[list[int]] = []

    def trained(_: Callable[[EpochTask], EpochResult], tasks: Iterable[EpochTask]) -> Iterable[EpochResult]:
        given = list(tasks)
        requested.append([int(task.folder.name) for task in given])
        return results(given)

    return made_search(folder, tuning, lambda values: cast("TrialRun", values), trained), requested


def found_by(made: Search, folder: Path, tuning: Tuning, outcome: SearchOutcome) -> SearchResult:
    """What a search of `folder` that has run says at its end, read by another process."""
    finished = made.resume_pruned(trials_to_resume(tuning, outcome))
    return SearchResult(
        tuning=tuning,
        outcome=outcome,
        values=made.values,
        accuracies=made.accuracies,
        reasons=made.reasons,
        finished=finished,
        failed_afterwards=made.failed_afterwards,
        epochs_afterwards=made.epochs_afterwards,
        epoch_times=TrialStorage(folder / "journal.log").epoch_times,
        n_val=40,
        images="",
        journal=folder / "journal.log",
    )


def test_a_trial_whose_worker_dies_has_failed_alone(tmp_path: Path) -> None:
    def trained(tasks: list[EpochTask]) -> list[EpochResult]:
        trials = [int(task.folder.name) for task in tasks]
        culprit = EpochResult(accuracy=None, reason="killed", seconds=0.0, killed=True)
        well = [EpochResult(accuracy=trial / 10, seconds=1.0) for trial in trials]
        # Trial 1 kills whoever trains it; trial 2 was in the queue of the same worker.
        return [
            culprit if trial == 1 or (1 in trials and trial == 2) else one
            for trial, one in zip(trials, well, strict=True)
        ]

    made, requested = search(tmp_path, tuning_of(), trained)
    outcome = made.run()
    assert requested == [[0, 1, 2], [1], [2]]
    assert (outcome.winner, outcome.failed) == (2, (False, True, False))
    assert made.reasons == ["", "killed", ""]


def test_a_winner_that_fails_later_stays_the_winner(tmp_path: Path) -> None:
    def trained(tasks: list[EpochTask]) -> list[EpochResult]:
        curves: dict[int, list[float | None]] = {0: [0.5, None], 1: [0.3, 0.9]}
        result = [curves[int(task.folder.name)][task.epoch - 1] for task in tasks]
        return [EpochResult(accuracy=one, reason="" if one else "diverged", seconds=1.0) for one in result]

    tuning = tuning_of(trials=2, epochs=2, pruner={"name": "threshold", "kind": "absolute"}, resume_pruned=1)
    made, _ = search(tmp_path, tuning, trained)
    outcome = made.run()
    assert (outcome.winner, outcome.epochs) == (0, (1, 1))
    summary = found_by(made, tmp_path, tuning, outcome).summary()
    assert summary["finished_afterwards"] == [1]
    assert summary["late_bloomers"] is None
    assert summary["winner"]["accuracy_at_end"] is None
    assert summary["failed_afterwards"] == [{"trial": 0, "reason": "diverged"}]
    assert summary["epochs_afterwards"] == 1
    assert made.reasons == ["", ""]


@pytest.mark.parametrize(("resume_pruned", "late", "afterwards"), [(1, [1], 4), (0, None, 0)])
def test_a_pruned_trial_that_overtakes_the_winner_is_found(
    resume_pruned: int, late: list[int] | None, afterwards: int, tmp_path: Path
) -> None:
    def trained(tasks: list[EpochTask]) -> list[EpochResult]:
        curves = {0: [0.5, 0.6, 0.7], 1: [0.3, 0.5, 0.9]}
        result = [curves[int(task.folder.name)][task.epoch - 1] for task in tasks]
        return [EpochResult(accuracy=one, seconds=2.0, switch_seconds=0.5) for one in result]

    tuning = tuning_of(
        trials=2, epochs=3, pruner={"name": "threshold", "kind": "absolute"}, resume_pruned=resume_pruned
    )
    made, _ = search(tmp_path, tuning, trained)
    outcome = made.run()
    assert (outcome.winner, outcome.epochs) == (0, (1, 1))
    summary = found_by(made, tmp_path, tuning, outcome).summary()
    assert summary["late_bloomers"] == late
    # What the rule saved, regardless of what was trained afterwards to test it.
    assert (summary["epochs"], summary["epochs_saved"], summary["epochs_afterwards"]) == (2, 4, afterwards)
    assert summary["context_switch"] == {"epochs": 2 + afterwards, "median_seconds": 0.5, "median_share": 0.25}


def test_epochs_that_failed_trials_did_not_reach_are_not_saved(tmp_path: Path) -> None:
    def trained(tasks: list[EpochTask]) -> list[EpochResult]:
        accuracies = [None if int(task.folder.name) == 0 and task.epoch == 2 else 0.5 for task in tasks]
        return [EpochResult(accuracy=one, reason="" if one else "no", seconds=1.0) for one in accuracies]

    tuning = tuning_of(trials=2, epochs=4, pruner={"name": "none"})
    made, _ = search(tmp_path, tuning, trained)
    summary = found_by(made, tmp_path, tuning, made.run()).summary()
    counted = {name: summary[f"epochs{name}"] for name in ("", "_allowed", "_lost", "_saved")}
    assert counted == {"": 5, "_allowed": 8, "_lost": 3, "_saved": 0}
    assert summary["saved_share"] == 0


def test_without_pruned_trials_there_are_no_late_bloomers(tmp_path: Path) -> None:
    tuning = tuning_of(trials=2)
    made, _ = search(tmp_path, tuning, lambda tasks: [EpochResult(accuracy=0.5, seconds=1.0) for _ in tasks])
    summary = found_by(made, tmp_path, tuning, made.run()).summary()
    assert summary["late_bloomers"] == []


def test_if_the_last_promoted_trial_fails_another_wins(tmp_path: Path) -> None:
    def trained(tasks: list[EpochTask]) -> list[EpochResult]:
        result = [None if task.epoch == 4 else 0.5 + int(task.folder.name) / 10 for task in tasks]
        return [EpochResult(accuracy=one, reason="" if one else "diverged", seconds=1.0) for one in result]

    tuning = tuning_of(trials=4, epochs=4, pruner={"name": "successive_halving", "factor": 2})
    for rounds in (4, 0):
        made, requested = search(tmp_path, tuning, trained)
        outcome = made.run()
        assert len(requested) - requested.count([]) == rounds
        assert (outcome.winner, outcome.epochs) == (2, (1, 1, 2, 3))
        assert made.reasons == ["", "", "", "diverged"]
        assert trials_to_resume(tuning, outcome) == []


@pytest.mark.parametrize(
    "changes",
    [
        {
            "pruner": {"name": "threshold", "kind": "absolute", "amount": 0.3},
            "max_concurrent_trials": 3,
            "sampler": TPE,
        },
        {"pruner": {"name": "successive_halving", "factor": 2}},
        {"pruner": {"name": "hyperband", "factor": 2}, "trials": None},
        {"pruner": {"name": "hyperband", "factor": 2}, "trials": None, "sampler": TPE},
    ],
)
def test_a_search_killed_often_has_the_uninterrupted_outcome(changes: dict[str, Any], tmp_path: Path) -> None:
    tuning = tuning_of(**{"trials": 8, "epochs": 4, **changes})
    table = np.random.default_rng(4).uniform(0.2, 0.9, size=(10, 4))
    table[[1, 5, 9], [2, 0, 1]] = np.nan
    trained: list[tuple[str, int]] = []

    def dying_after(epochs: float) -> Callable[[list[EpochTask]], Iterator[EpochResult]]:
        lasts = len(trained) + epochs

        def train(tasks: list[EpochTask]) -> Iterator[EpochResult]:
            for task in tasks:
                if len(trained) == lasts:
                    raise KeyboardInterrupt
                trained.append((task.folder.name, task.epoch))
                accuracy = float(table[int(task.folder.name), task.epoch - 1])
                yield EpochResult(accuracy=None if np.isnan(accuracy) else accuracy, reason="said", seconds=1.0)

        return train

    once, _ = search(tmp_path / "once", tuning, dying_after(np.inf))
    expected, turns = once.run(), list(trained)
    trained.clear()
    lives, outcome = 0, None
    while outcome is None:
        lives += 1
        again, _ = search(tmp_path / "again", tuning, dying_after(3))
        with suppress(KeyboardInterrupt):
            outcome = again.run()
    assert outcome == expected
    assert (again.values, again.accuracies, again.reasons) == (once.values, once.accuracies, once.reasons)
    assert trained == turns
    assert lives > 3


def test_tpe_under_hyperband_has_to_be_able_to_learn() -> None:
    """Brackets of 4, 3 and 3 trials: 7 have ended when the last three draw."""
    for startup, fits in ((7, True), (8, False)):
        sampler = {"name": "tpe", "n_startup_trials": startup}
        tuning = tuning_of(trials=None, epochs=4, pruner={"name": "hyperband", "factor": 2}, sampler=sampler)
        if fits:
            assert count_trials(tuning) == 10
            continue
        with pytest.raises(InputError) as raised:
            count_trials(tuning)
        assert raised.value.key == "sampler"


@pytest.mark.parametrize(
    ("resume_pruned", "epochs", "expected"),
    [
        (0, (4, 4, 1, 4), [3, 1]),  # trial 1 ran to the end before trial 3 put it out: that costs nothing to know
        (1, (4, 4, 1, 4), [3, 1, 2]),
        (0, (4, 4, 1, 2), []),  # the winner's end is not known
        (2, (4, 4, 1, 2), [3, 1, 2]),
        (0, (4, 2, 1, 4), []),
    ],
)
def test_complete_curves_always_count(resume_pruned: int, epochs: tuple[int, ...], expected: list[int]) -> None:
    full = [1] if epochs[1] == 4 else []
    tuning = tuning_of(
        trials=4, epochs=4, pruner={"name": "threshold", "kind": "absolute"}, resume_pruned=resume_pruned
    )
    outcome = SearchOutcome(winner=3, epochs=epochs, eliminated_after=(None, 2, 1, None), failed=(False,) * 4)
    assert trials_to_resume(tuning, outcome) == expected
    assert trials_to_resume(tuning, outcome, compared=True) == [3, *(expected[1:] or full)]


@pytest.mark.parametrize("seed", range(10))
def test_trials_to_resume_are_a_subset_of_those_of_a_larger_number(seed: int) -> None:
    rule = {"name": "threshold", "kind": "absolute"}
    outcome = SearchOutcome(winner=0, epochs=(4, *[1] * 6), eliminated_after=(None, *[1] * 6), failed=(False,) * 7)
    sampled = [
        set(
            trials_to_resume(
                tuning_of(trials=7, epochs=4, pruner=rule, resume_pruned=resume_pruned, seed=seed), outcome
            )
        )
        for resume_pruned in range(8)
    ]
    assert [len(trials) for trials in sampled] == [0, 2, 3, 4, 5, 6, 7, 7]
    assert all(fewer <= more for fewer, more in pairwise(sampled))


@pytest.mark.parametrize("resume_pruned", [0, 1])
def test_states_of_pruned_trials_are_kept_to_resume_them(resume_pruned: int, tmp_path: Path) -> None:
    def trained(tasks: list[EpochTask]) -> list[EpochResult]:
        for task in tasks:
            task.folder.mkdir(exist_ok=True)
            Checkpoints(task.folder).save(task.epoch, {})
        return [EpochResult(accuracy=int(task.folder.name) / 4, seconds=1.0) for task in tasks]

    rule = {"name": "threshold", "kind": "absolute", "amount": 0.1}
    made, _ = search(tmp_path, tuning_of(trials=3, epochs=3, pruner=rule, resume_pruned=resume_pruned), trained)
    outcome = made.run()
    assert outcome.eliminated_after == (1, 1, None)
    left = {int(path.parent.name) for path in tmp_path.glob("*/step-*")}
    assert left == ({0, 1, 2} if resume_pruned else {2})
