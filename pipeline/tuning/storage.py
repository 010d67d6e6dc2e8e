"""The journal of a search, and its sampler."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import Trial, TrialState, create_trial

from pipeline.config.tuning import Domain, Tuning
from pipeline.errors import InputError
from pipeline.tuning.scheduler import TrialStatus, TrialStep

# What a search has found so far, on disk: Optuna's journal, which its own tools can read too.


_NAME = "search"
_REASON = "reason"
_AFTERWARDS = "afterwards"
_SECONDS = "seconds"


class StepResult(NamedTuple):
    """What a turn gave: an accuracy (0 to 1), or None and the reason of the failure."""

    accuracy: float | None
    reason: str = ""


class TrialStorage:
    """The trials of one search with their values and accuracies; every entry is on the disk when a method returns.

    One process at a time may hold it, which the caller sees to.

    Args:
        path: of the file, made if it is not there.

    Raises:
        InputError: a line of the file is damaged or missing.
    """

    def __init__(self, path: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_lines(path)
        self._path = path
        try:
            self._read(path)
        except (LookupError, TypeError, ValueError, AssertionError) as error:
            raise InputError(
                f"{path}: a line is missing or none of a search's ({type(error).__name__}: {error}); remove its folder "
                "to begin the search anew"
            ) from None

    def _read(self, path: Path) -> None:
        """What Optuna makes of the lines, which are JSON."""
        begun = path.exists() and path.stat().st_size > 0
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_NoLock(str(path))))
        if begun and _NAME not in optuna.get_all_study_names(storage):
            raise ValueError("it begins no search")
        self._study = optuna.create_study(
            storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True
        )  # fmt: skip
        trials = self._study.get_trials(deepcopy=False)
        self._drawn = [dict(trial.params) for trial in trials]
        self._handles = [Trial(self._study, trial._trial_id) for trial in trials]
        self._over = [trial.state.is_finished() for trial in trials]
        self._results: dict[TrialStep, StepResult] = {}
        for trial in trials:
            for epoch, accuracy in trial.intermediate_values.items():
                self._results[TrialStep(trial.number, epoch)] = StepResult(accuracy)
            if trial.state == TrialState.FAIL:
                failed_in = max(trial.intermediate_values, default=0) + 1
                self._results[TrialStep(trial.number, failed_in)] = StepResult(None, trial.user_attrs[_REASON])
        self._switching: dict[TrialStep, tuple[float, float]] = {}
        for key, (first, second) in self._study.user_attrs.items():
            what, number, after = key.split()
            turn = TrialStep(int(number), int(after))
            if what == _SECONDS:
                self._switching[turn] = (first, second)
            else:
                self._results[turn] = StepResult(first, second)
        # They are noted before the accuracy is.
        known = [turn for turn, result in self._results.items() if result.accuracy is not None]
        if lost := [turn for turn in known if turn not in self._switching]:
            raise ValueError(f"nothing tells how long trial {lost[0].trial} took for epoch {lost[0].epoch}")

    def start(self, trial: int, drawn: Mapping[str, Any], distributions: dict[str, BaseDistribution]) -> None:
        """Note what a trial drew; trials start in order, and again as before if the search is taken up.

        Raises:
            InputError: the file says that it drew something else.
        """
        if trial < len(self._drawn):
            if self._drawn[trial] != drawn:
                raise InputError(
                    f"{self._path}: trial {trial} has {self._drawn[trial]}, and draws {drawn}; a line is missing, so "
                    "remove its folder to begin the search anew"
                )
            return
        assert trial == len(self._drawn), trial
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=dict(drawn), distributions=distributions))
        self._drawn.append(dict(drawn))
        self._handles.append(Trial(self._study, self._study.get_trials(deepcopy=False)[trial]._trial_id))
        self._over.append(False)

    def result(self, turn: TrialStep) -> StepResult | None:
        """What is known of a turn; None if it was not taken yet."""
        return self._results.get(turn)

    @property
    def switching(self) -> list[tuple[float, float]]:
        """(epochs, 2), of each epoch that was trained, by whatever process: its seconds, and those of the switch."""
        return [self._switching[turn] for turn in sorted(self._switching) if turn in self._results]

    def add(self, turn: TrialStep, result: StepResult, *, seconds: float, switch_seconds: float) -> None:
        """Note what a turn gave; what comes after the end of a trial is kept beside it.

        Args:
            seconds: wall time of the epoch; of one that failed it is not kept.
            switch_seconds: of which went into taking the trial up and laying it down.
        """
        if result.accuracy is not None:
            # First: who is killed between the two does the turn again.
            self._switching[turn] = (seconds, switch_seconds)
            self._study.set_user_attr(f"{_SECONDS} {turn.trial} {turn.epoch}", [seconds, switch_seconds])
        if self._over[turn.trial]:
            self._study.set_user_attr(f"{_AFTERWARDS} {turn.trial} {turn.epoch}", [*result])
        elif result.accuracy is not None:
            self._handles[turn.trial].report(result.accuracy, turn.epoch)
        else:
            self._handles[turn.trial].set_user_attr(_REASON, result.reason)
            self.end(turn.trial, "failed", None)
        self._results[turn] = result

    def end(self, trial: int, how: TrialStatus, accuracy: float | None) -> None:
        """Note that a trial is over; `accuracy` is that of its last epoch. Once is enough."""
        if self._over[trial]:
            return
        state = {"finished": TrialState.COMPLETE, "eliminated": TrialState.PRUNED, "failed": TrialState.FAIL}[how]
        self._study.tell(trial, accuracy if how == "finished" else None, state=state)
        self._over[trial] = True


class _NoLock(JournalFileOpenLock):
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


# Which values a trial takes: Optuna's samplers over a space of params keys, asked and told in a fixed order.


def to_distributions(space: Mapping[str, Domain]) -> dict[str, BaseDistribution]:
    """Optuna's form of a space; choices, which may be sections, are named by their JSON."""
    return {key: _distribution(domain) for key, domain in space.items()}


def from_optuna_params(space: Mapping[str, Domain], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """What Optuna drew, as params.yaml would have it."""
    return {key: json.loads(value) if space[key].choices else value for key, value in drawn.items()}


def to_optuna_params(space: Mapping[str, Domain], values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `from_optuna_params`."""
    return {key: _choice_name(value) if space[key].choices else value for key, value in values.items()}


class TrialSampler:
    """A sampler that remembers trials in memory: the same calls in the same order give the same values.

    So a search that was interrupted asks again from the start, and is answered as before.
    """

    def __init__(self, tuning: Tuning) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._distributions = to_distributions(tuning.space)
        # The other samplers look at no result, and Optuna's grid does not bear to be told outside its own loop.
        self._learns = tuning.sampler.name == "tpe"
        self._study = optuna.create_study(direction="maximize", sampler=_sampler(tuning))
        self._trials: list[Trial] = []

    def ask(self) -> dict[str, Any]:
        """The values of the next trial, in Optuna's form."""
        self._trials.append(self._study.ask(self._distributions))
        return dict(self._trials[-1].params)

    def report(self, trial: int, epoch: int, accuracy: float) -> None:
        """After each epoch of trial `trial`, counted from 0."""
        if self._learns:
            self._trials[trial].report(accuracy, epoch)

    def end(self, trial: int, how: TrialStatus, accuracy: float | None) -> None:
        """Once for every trial; `accuracy` is that of its last epoch."""
        if not self._learns:
            return
        state = {"finished": TrialState.COMPLETE, "eliminated": TrialState.PRUNED, "failed": TrialState.FAIL}[how]
        self._study.tell(trial, accuracy if how == "finished" else None, state=state)


def _distribution(domain: Domain) -> BaseDistribution:
    if domain.choices:
        return CategoricalDistribution([_choice_name(choice) for choice in domain.choices])
    if domain.int_uniform:
        return IntDistribution(*domain.int_uniform)
    bounds = domain.uniform or domain.log_uniform
    assert bounds is not None
    return FloatDistribution(*bounds, log=domain.log_uniform is not None)


def _sampler(tuning: Tuning) -> BaseSampler:
    match tuning.sampler.name:
        case "random":
            return RandomSampler(seed=tuning.seed)
        case "grid":
            return GridSampler({key: _points(domain) for key, domain in tuning.space.items()}, seed=tuning.seed)
        case "tpe":
            return TPESampler(seed=tuning.seed, n_startup_trials=tuning.sampler.n_startup_trials)


def _points(domain: Domain) -> list[Any]:
    if domain.int_uniform:
        low, high = domain.int_uniform
        return list(range(low, high + 1))
    return [_choice_name(choice) for choice in domain.choices or ()]


def _choice_name(choice: Any) -> str:
    return json.dumps(choice, sort_keys=True)
