"""Searches whose trials have several seeds, with invented epochs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from pipeline.commands.tune.run import counted
from pipeline.tuning.search import Search
from pipeline.tuning.storage import TrialStorage
from pipeline.tuning.trial import TrialRun
from pipeline.tuning.worker import EpochResult, EpochTask
from tests.unit.tuning.test_search import made_search, tuning_of


@dataclass
class _Settings:
    seed: int


@dataclass
class _Run:
    settings: _Settings
    seeds: tuple[int, ...] = (5, 7, 8)


class _Ended:
    """Progress that counts epochs."""

    n = 0

    def update(self, n: int = 1, note: str = "") -> None:
        self.n += n


def _with_seeds(
    folder: Path, accuracies: Callable[[int, int], float | None], *, killed: Iterable[tuple[int, int]] = ()
) -> tuple[Search, list[list[int]], _Ended]:
    """Return a search of two trials with three seeds each, the seeds of each request, and the progress.

    Args:
        accuracies: of a trial and a seed.
        killed: trial and seed of each task whose worker dies; a pair given twice dies twice.
    """
    asked: list[list[int]] = []
    dying, ended = list(killed), _Ended()

    def trained(_: Callable[[EpochTask], EpochResult], tasks: Iterable[EpochTask]) -> Iterable[EpochResult]:
        given = list(tasks)
        asked.append([task.run.settings.seed for task in given])
        assert len({task.folder for task in given}) == len(given)
        for task in given:
            pair = int(task.folder.name[:4]), task.run.settings.seed
            if pair in dying:
                dying.remove(pair)
                yield EpochResult(accuracy=None, reason="killed", seconds=0.0, killed=True)
                continue
            accuracy = accuracies(*pair)
            yield EpochResult(accuracy=accuracy, reason="" if accuracy is not None else "diverged", seconds=2.0)

    made = made_search(
        folder, tuning_of(trials=2, seeds=3), lambda _: cast("TrialRun", _Run(_Settings(5))), counted(trained, ended)
    )
    return made, asked, ended


def test_a_trial_of_several_seeds_has_their_mean_accuracy(tmp_path: Path) -> None:
    """The trial with the best single seed is not the one with the best mean."""
    made, asked, ended = _with_seeds(
        tmp_path, lambda trial, seed: [{5: 0.9, 7: 0.1, 8: 0.2}, {5: 0.5, 7: 0.6, 8: 0.7}][trial][seed]
    )
    outcome = made.run()
    assert asked == [[5, 7, 8, 5, 7, 8]]
    assert made.accuracies == [[pytest.approx(0.4)], [pytest.approx(0.6)]]
    assert outcome.winner == 1
    assert ended.n == 6
    assert TrialStorage(tmp_path / "journal.log").epoch_times == [(6.0, 0.0)] * 2


def test_a_seed_that_fails_fails_its_trial(tmp_path: Path) -> None:
    made, *_ = _with_seeds(tmp_path, lambda trial, seed: None if (trial, seed) == (0, 7) else 0.5)
    outcome = made.run()
    assert (outcome.winner, outcome.failed) == (1, (True, False))
    assert made.reasons == ["diverged", ""]


def test_only_seeds_whose_worker_died_are_trained_again(tmp_path: Path) -> None:
    """The others have ended, and the progress counts each seed once."""
    made, asked, ended = _with_seeds(tmp_path, lambda *_: 0.5, killed=[(0, 7), (1, 5), (1, 8)])
    outcome = made.run()
    assert asked == [[5, 7, 8, 5, 7, 8], [7], [5], [8]]
    assert ended.n == 6
    assert outcome.failed == (False, False)
    assert TrialStorage(tmp_path / "journal.log").epoch_times == [(6.0, 0.0)] * 2


def test_a_seed_whose_worker_dies_again_fails_its_trial(tmp_path: Path) -> None:
    made, asked, ended = _with_seeds(tmp_path, lambda *_: 0.5, killed=[(0, 7)] * 2)
    outcome = made.run()
    assert asked == [[5, 7, 8, 5, 7, 8], [7]]
    assert ended.n == 5
    assert (outcome.winner, outcome.failed) == (1, (True, False))
    assert made.reasons == ["killed", ""]
