"""What a search has found so far, on disk: Optuna's journal, which its own tools can read too."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import Trial, TrialState, create_trial

from pipeline.errors import InputError
from pipeline.tuning.race import Ending, Turn

_NAME = "search"
_REASON = "reason"
_AFTERWARDS = "afterwards"


class Result(NamedTuple):
    """What a turn gave: an accuracy (0 to 1), or None and the reason of the failure."""

    accuracy: float | None
    reason: str = ""


class Journal:
    """The trials of one search with their values and accuracies; every entry is on the disk when a method returns.

    One process at a time may hold it, which the caller sees to.

    Args:
        path: of the file, made if it is not there.

    Raises:
        InputError: a line of the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_lines(path)
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_HeldElsewhere(str(path))))
        self._study = optuna.create_study(
            storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True
        )  # fmt: skip
        trials = self._study.get_trials(deepcopy=False)
        self._drawn = [dict(trial.params) for trial in trials]
        self._handles = [Trial(self._study, trial._trial_id) for trial in trials]
        self._over = [trial.state.is_finished() for trial in trials]
        self._results: dict[Turn, Result] = {}
        for trial in trials:
            for epoch, accuracy in trial.intermediate_values.items():
                self._results[Turn(trial.number, epoch)] = Result(accuracy)
            if trial.state == TrialState.FAIL:
                failed_in = max(trial.intermediate_values, default=0) + 1
                self._results[Turn(trial.number, failed_in)] = Result(None, trial.user_attrs[_REASON])
        for key, (accuracy, reason) in self._study.user_attrs.items():
            _, number, after = key.split()
            self._results[Turn(int(number), int(after))] = Result(accuracy, reason)

    def start(self, trial: int, drawn: Mapping[str, Any], distributions: dict[str, BaseDistribution]) -> None:
        """Note what a trial drew; trials start in order, and again as before if the search is taken up."""
        if trial < len(self._drawn):
            assert self._drawn[trial] == drawn, f"trial {trial} has drawn {drawn}, and {self._drawn[trial]} before"
            return
        assert trial == len(self._drawn), trial
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=dict(drawn), distributions=distributions))
        self._drawn.append(dict(drawn))
        self._handles.append(Trial(self._study, self._study.get_trials(deepcopy=False)[trial]._trial_id))
        self._over.append(False)

    def result(self, turn: Turn) -> Result | None:
        """What is known of a turn; None if it was not taken yet."""
        return self._results.get(turn)

    def add(self, turn: Turn, result: Result) -> None:
        """Note what a turn gave; what comes after the end of a trial is kept beside it."""
        if self._over[turn.trial]:
            self._study.set_user_attr(f"{_AFTERWARDS} {turn.trial} {turn.epoch}", [*result])
        elif result.accuracy is not None:
            self._handles[turn.trial].report(result.accuracy, turn.epoch)
        else:
            self._handles[turn.trial].set_user_attr(_REASON, result.reason)
            self.end(turn.trial, "failed", None)
        self._results[turn] = result

    def end(self, trial: int, how: Ending, accuracy: float | None) -> None:
        """Note that a trial is over; `accuracy` is that of its last epoch. Once is enough."""
        if self._over[trial]:
            return
        state = {"finished": TrialState.COMPLETE, "eliminated": TrialState.PRUNED, "failed": TrialState.FAIL}[how]
        self._study.tell(trial, accuracy if how == "finished" else None, state=state)
        self._over[trial] = True


class _HeldElsewhere(JournalFileOpenLock):
    """Optuna's own lock files outlive a killed process, and the next would wait for them."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _check_lines(path: Path) -> None:
    """Drop half a line at the end, as a power cut may leave it: Optuna would write the next one onto it."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            json.loads(line)
        except ValueError:
            raise InputError(
                f"{path}: line {number} is damaged; remove it with all lines after it, or the folder to begin the "
                "search anew"
            ) from None
    os.truncate(path, whole)
