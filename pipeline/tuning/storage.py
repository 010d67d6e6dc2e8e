"""Trials of a search on disk, in Optuna's journal format, and the sampler that suggests their values."""

import json
import math
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
from pipeline.errors import InputError, lacks_resources, short_reason
from pipeline.tuning.scheduler import TrialStatus, TrialStep

_NAME = "search"
_REASON = "reason"
_AFTERWARDS = "afterwards"
_SECONDS = "seconds"
_STATES = {"finished": TrialState.COMPLETE, "eliminated": TrialState.PRUNED, "failed": TrialState.FAIL}


# Optuna's number of each operation that it writes -> the keys that it always has, next to worker_id.
_OPERATION_KEYS: Mapping[int, tuple[str, ...]] = {
    0: ("study_name", "directions"),
    1: ("study_id",),
    2: ("study_id", "user_attr"),
    3: ("study_id", "system_attr"),
    4: ("study_id", "datetime_start"),
    5: ("trial_id", "param_name", "param_value_internal", "distribution"),
    6: ("trial_id", "state", "values"),
    7: ("trial_id", "step", "intermediate_value"),
    8: ("trial_id", "user_attr"),
    9: ("trial_id", "system_attr"),
}


class StepResult(NamedTuple):
    """Result of a step: an accuracy (0 to 1), or None and the reason of the failure."""

    accuracy: float | None
    reason: str = ""


class TrialStorage:
    """The trials of one search, with values and accuracies, in a file that Optuna's tools read too.

    Each entry is on disk when a method returns. The caller ensures that one process at a time uses the file.

    Args:
        path: of the file, created if missing.

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
        except Exception as error:
            # Optuna passes on whatever an invalid value raises in its code.
            if isinstance(error, OSError) or lacks_resources(error):
                raise
            raise InputError(
                f"{path}: a line is missing or invalid ({type(error).__name__}: {short_reason(error)}); remove its "
                "folder to restart the search"
            ) from None

    def _read(self, path: Path) -> None:
        """Load the lines, which are JSON, with Optuna."""
        has_content = path.exists() and path.stat().st_size > 0
        storage = JournalStorage(_JournalFile(str(path), lock_obj=_NoLock(str(path))))
        if has_content and _NAME not in optuna.get_all_study_names(storage):
            raise ValueError("no search starts in this file")
        self._study = optuna.create_study(
            storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True
        )  # fmt: skip
        trials = self._study.get_trials(deepcopy=False)
        self._params = [dict(trial.params) for trial in trials]
        self._handles = [Trial(self._study, trial._trial_id) for trial in trials]
        self._ended = [trial.state.is_finished() for trial in trials]
        self._results: dict[TrialStep, StepResult] = {}
        for trial in trials:
            for epoch, accuracy in trial.intermediate_values.items():
                self._results[TrialStep(trial.number, epoch)] = _result(_number(accuracy))
            if trial.state == TrialState.FAIL:
                failed_in = max(trial.intermediate_values, default=0) + 1
                self._results[TrialStep(trial.number, failed_in)] = _result(None, trial.user_attrs[_REASON])
        self._epoch_times: dict[TrialStep, tuple[float, float]] = {}
        for key, (first, second) in self._study.user_attrs.items():
            kind, trial_text, epoch_text = key.split()
            step = TrialStep(int(trial_text), int(epoch_text))
            if kind == _SECONDS:
                self._epoch_times[step] = (_number(first), _number(second))
            else:
                self._results[step] = _result(first, second)
        # Seconds are written before the accuracy.
        measured = [step for step, result in self._results.items() if result.accuracy is not None]
        if missing := [step for step in measured if step not in self._epoch_times]:
            raise ValueError(f"no seconds of trial {missing[0].trial}, epoch {missing[0].epoch}")

    def start(self, trial: int, params: Mapping[str, Any], distributions: dict[str, BaseDistribution]) -> None:
        """Record the parameters of a trial. Trials start in order, and a resumed search starts them again.

        Raises:
            InputError: the file has other parameters of this trial.
        """
        if trial < len(self._params):
            if self._params[trial] != params:
                raise InputError(
                    f"{self._path}: trial {trial} has {self._params[trial]}, but the sampler gives {params}; a line "
                    "is missing, so remove its folder to restart the search"
                )
            return
        assert trial == len(self._params), trial
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=dict(params), distributions=distributions))
        self._params.append(dict(params))
        self._handles.append(Trial(self._study, self._study.get_trials(deepcopy=False)[trial]._trial_id))
        self._ended.append(False)

    def result(self, step: TrialStep) -> StepResult | None:
        """Return the result of a step, or None if it has none yet."""
        return self._results.get(step)

    @property
    def epoch_times(self) -> list[tuple[float, float]]:
        """(epochs, 2), seconds of each trained epoch of any process, and of its context switch."""
        return [self._epoch_times[step] for step in sorted(self._epoch_times) if step in self._results]

    def add(self, step: TrialStep, result: StepResult, *, seconds: float, switch_seconds: float) -> None:
        """Record the result of a step. Results after the end of a trial become attributes of the study.

        Args:
            step: trial and epoch.
            result: accuracy or failure.
            seconds: wall time of the epoch; not stored for a failed one.
            switch_seconds: the part of it that restored and saved the trial.
        """
        if result.accuracy is not None:
            # First, so that a process killed between the two writes repeats the step.
            self._epoch_times[step] = (seconds, switch_seconds)
            self._study.set_user_attr(f"{_SECONDS} {step.trial} {step.epoch}", [seconds, switch_seconds])
        if self._ended[step.trial]:
            self._study.set_user_attr(f"{_AFTERWARDS} {step.trial} {step.epoch}", [*result])
        elif result.accuracy is not None:
            self._handles[step.trial].report(result.accuracy, step.epoch)
        else:
            self._handles[step.trial].set_user_attr(_REASON, result.reason)
            self.end(step.trial, "failed", None)
        self._results[step] = result

    def end(self, trial: int, status: TrialStatus, accuracy: float | None) -> None:
        """Record that a trial ended, once. `accuracy` is that of its last epoch."""
        if self._ended[trial]:
            return
        self._study.tell(trial, accuracy if status == "finished" else None, state=_STATES[status])
        self._ended[trial] = True


class _JournalFile(JournalFileBackend):
    """Optuna's file, named in the errors of the system."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            super().append_logs(logs)
        except OSError as error:
            error.filename = error.filename or self._file_path
            raise


class _NoLock(JournalFileOpenLock):
    """No lock. Optuna's lock files outlive a killed process, and the next process would wait for them."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _check_lines(path: Path) -> None:
    """Remove an incomplete last line, as after a power failure: Optuna would append the next line to it.

    Raises:
        InputError: a complete line is not JSON, or no operation with its keys.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    complete = content.rfind(b"\n") + 1
    for number, line in enumerate(content[:complete].splitlines(), start=1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not _is_operation(entry):
            raise InputError(
                f"{path}: line {number} is damaged; remove it with all lines after it, or the folder to restart the "
                "search"
            )
    os.truncate(path, complete)


def _is_operation(entry: object) -> bool:
    """Return whether an object has the keys of its operation, with whole numbers where Optuna looks something up."""
    if not isinstance(entry, dict) or type(entry.get("op_code")) is not int:
        return False
    keys = _OPERATION_KEYS.get(entry["op_code"])
    if keys is None or not entry.keys() >= {"worker_id", *keys}:
        return False
    return all(type(entry[key]) is int for key in ("study_id", "trial_id", "step") if key in entry)


def _result(accuracy: object, reason: object = "") -> StepResult:
    """Return a result of the file.

    Raises:
        ValueError: the accuracy is not 0 to 1, or the reason no text.
    """
    if not isinstance(reason, str):
        raise ValueError(f"{reason!r} is no reason")
    if accuracy is None:
        return StepResult(None, reason)
    value = _number(accuracy)
    if value > 1:
        raise ValueError(f"{accuracy!r} is no accuracy")
    return StepResult(value, reason)


def _number(value: object) -> float:
    """Return a finite number of the file that is not negative.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no number that a search writes")
    return value


def to_distributions(space: Mapping[str, Domain]) -> dict[str, BaseDistribution]:
    """Convert a space of params keys to Optuna. Choices, which may be sections, are named by their JSON."""
    return {key: _distribution(domain) for key, domain in space.items()}


def from_optuna_params(space: Mapping[str, Domain], params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Optuna's parameters to values of params.yaml."""
    return {key: json.loads(value) if space[key].choices else value for key, value in params.items()}


def to_optuna_params(space: Mapping[str, Domain], values: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `from_optuna_params`."""
    return {key: _choice_name(value) if space[key].choices else value for key, value in values.items()}


class TrialSampler:
    """Optuna's sampler of a search, with the trials in memory.

    The same calls in the same order give the same values, so a resumed search repeats them from the start.
    """

    def __init__(self, tuning: Tuning) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._distributions = to_distributions(tuning.space)
        # The other samplers ignore results, and Optuna's grid sampler fails on `tell` outside its own loop.
        self._learns = tuning.sampler.name == "tpe"
        self._study = optuna.create_study(direction="maximize", sampler=_sampler(tuning))
        self._trials: list[Trial] = []

    def ask(self) -> dict[str, Any]:
        """Return the values of the next trial, in Optuna's form."""
        self._trials.append(self._study.ask(self._distributions))
        return dict(self._trials[-1].params)

    def report(self, trial: int, epoch: int, accuracy: float) -> None:
        """Report an epoch of trial `trial`, from 0."""
        if self._learns:
            self._trials[trial].report(accuracy, epoch)

    def tell(self, trial: int, status: TrialStatus, accuracy: float | None) -> None:
        """Report the end of a trial, once. `accuracy` is that of its last epoch."""
        if self._learns:
            self._study.tell(trial, accuracy if status == "finished" else None, state=_STATES[status])


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
