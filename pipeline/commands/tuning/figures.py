"""The figures of a search as files for papers, and what its page draws them from."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from matplotlib.figure import Figure
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from pipeline.config.tuning import Domain
from pipeline.tuning.results import Found
from pipeline.tuning.sampling import distributions_of, drawn_of
from viz.figures.tuning_curves import TrialCurve, tuning_figure
from viz.figures.tuning_keys import KeyAxis, importance_figure, parallel_figure

_TICKS = 5  # at most, of an axis of numbers


def figures_of(found: Found) -> dict[str, Figure]:
    """By their names in `TUNING_FIGURES`; without those of the keys where these explain nothing."""
    drawn = {"curves": tuning_figure(trial_curves(found))}
    shares = importances(as_optuna(found))
    if not shares:
        return drawn
    trials = [trial for trial, curve in enumerate(found.accuracies) if curve]
    keys = [
        key_axis(key, domain, [found.values[trial][key] for trial in trials])
        for key, domain in found.tuning.space.items()
    ]  # fmt: skip
    assert found.outcome.winner is not None
    parallel = parallel_figure(
        keys, [found.accuracies[trial][-1] for trial in trials], winner=trials.index(found.outcome.winner)
    )  # fmt: skip
    return {**drawn, "importance": importance_figure(shares), "parallel": parallel}


def trial_curves(found: Found) -> list[TrialCurve]:
    """Of all trials that finished an epoch."""
    return [
        TrialCurve(
            name=f"trial {trial}",
            accuracies=found.finished.get(trial, curve),
            searched=len(curve),
            winner=trial == found.outcome.winner,
            eliminated_after=found.outcome.eliminated_after[trial],
        )
        for trial, curve in enumerate(found.accuracies)
        if curve
    ]


def as_optuna(found: Found) -> optuna.Study:
    """All trials that have an accuracy, as if they were complete: Optuna looks at no others."""
    space = found.tuning.space
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            create_trial(params=drawn_of(space, values), distributions=distributions_of(space), value=curve[-1])
            for values, curve in zip(found.values, found.accuracies, strict=True)
            if curve
        ]
    )
    return study


def importances(study: optuna.Study) -> dict[str, float]:
    """Key -> its share (0 to 1) of the variance in accuracy, by fANOVA (Hutter et al. 2014).

    Empty where no key explains a difference: trials are equally good, have the same values, or are too few for the
    trees of its forest to be split by a key.
    """
    accuracies = {trial.value for trial in study.trials}
    values = {json.dumps(trial.params, sort_keys=True) for trial in study.trials}
    if len(accuracies) == 1 or len(values) == 1:
        return {}
    try:
        return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    except RuntimeError as error:
        if "zero total variance" not in str(error):
            raise
        return {}


def key_axis(key: str, domain: Domain, values: Sequence[Any]) -> KeyAxis:
    """Where the trials' values of a key lie in its domain.

    Args:
        values: (trials,), each of the domain.
    """
    if domain.choices:
        ticks = _choice_ticks(domain.choices)
        at = {text: place for place, text in ticks.items()}
        return KeyAxis(name=key, places=[at[_text(value)] for value in values], ticks=ticks)
    log = domain.log_uniform is not None
    low, high = (_scaled(end, log=log) for end in domain.extremes)

    def place(value: float) -> float:
        return (_scaled(value, log=log) - low) / (high - low)

    return KeyAxis(
        name=key,
        places=[place(value) for value in values],
        ticks={place(value): f"{value:g}" for value in _marked(domain)},
    )


def _choice_ticks(choices: Sequence[Any]) -> Mapping[float, str]:
    if len(choices) == 1:
        return {0.5: _text(choices[0])}
    return {index / (len(choices) - 1): _text(choice) for index, choice in enumerate(choices)}


def _marked(domain: Domain) -> list[float]:
    """The ends of a range, and what is round between them."""
    low, high = domain.extremes
    if domain.log_uniform:
        powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        # Not so close to an end that one label stands on the other.
        return [low, *(one for one in powers if low * 1.5 < one < high / 1.5), high]
    if domain.integers:
        return list(range(low, high + 1, max(1, math.ceil((high - low) / (_TICKS - 1)))))
    return [low + (high - low) * step / (_TICKS - 1) for step in range(_TICKS)]


def _scaled(value: float, *, log: bool) -> float:
    return math.log(value) if log else value


def _text(choice: Any) -> str:
    return json.dumps(choice, sort_keys=True)
