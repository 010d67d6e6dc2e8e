"""Which values a trial takes: Optuna's samplers over a space of params keys, asked and told in a fixed order."""

import json
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import Trial, TrialState

from pipeline.config.tuning import Domain, Tuning
from pipeline.tuning.race import Ending


def distributions_of(space: Mapping[str, Domain]) -> dict[str, BaseDistribution]:
    """Optuna's form of a space; choices, which may be sections, are named by their JSON."""
    return {key: _distribution(domain) for key, domain in space.items()}


def values_of(space: Mapping[str, Domain], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """What Optuna drew, as params.yaml would have it."""
    return {key: json.loads(value) if space[key].choices else value for key, value in drawn.items()}


def drawn_of(space: Mapping[str, Domain], values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `values_of`."""
    return {key: _named(value) if space[key].choices else value for key, value in values.items()}


class Suggestions:
    """A sampler that remembers trials in memory: the same calls in the same order give the same values.

    So a search that was interrupted asks again from the start, and is answered as before.
    """

    def __init__(self, tuning: Tuning) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._distributions = distributions_of(tuning.space)
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

    def end(self, trial: int, how: Ending, accuracy: float | None) -> None:
        """Once for every trial; `accuracy` is that of its last epoch."""
        if not self._learns:
            return
        state = {"finished": TrialState.COMPLETE, "eliminated": TrialState.PRUNED, "failed": TrialState.FAIL}[how]
        self._study.tell(trial, accuracy if how == "finished" else None, state=state)


def _distribution(domain: Domain) -> BaseDistribution:
    if domain.choices:
        return CategoricalDistribution([_named(choice) for choice in domain.choices])
    if domain.integers:
        return IntDistribution(*domain.integers)
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
            return TPESampler(seed=tuning.seed, n_startup_trials=tuning.sampler.startup_trials)


def _points(domain: Domain) -> list[Any]:
    if domain.integers:
        low, high = domain.integers
        return list(range(low, high + 1))
    return [_named(choice) for choice in domain.choices or ()]


def _named(choice: Any) -> str:
    return json.dumps(choice, sort_keys=True)
