"""Figures and page of a search."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from matplotlib.figure import Figure
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial
from optuna.visualization import plot_parallel_coordinate
from plotly import graph_objects as go

from pipeline.config.tuning import Domain
from pipeline.figures.rendering import plotly_html, plotly_layout, plotly_script
from pipeline.figures.tuning_curves import (
    KeyAxis,
    TrialCurve,
    importance_chart,
    importance_figure,
    parallel_figure,
    tuning_chart,
    tuning_figure,
)
from pipeline.tuning.results import SearchResult
from pipeline.tuning.storage import to_distributions, to_optuna_params

# What a search's summary says of late bloomers and of the context switch, on its page and in print.


def late_bloomers_text(summary: Mapping[str, Any]) -> str:
    """How many eliminated trials would have overtaken the winner, or why nobody knows.

    Args:
        summary: from `Found.summary`.
    """
    late, looked_at = summary["late_bloomers"], len(summary["finished_afterwards"])
    failed = [one["trial"] for one in summary["failed_afterwards"]]
    if summary["winner"]["trial"] in failed:
        return "the winner failed on its way to the end, so that no eliminated trial can be held beside it"
    if late is None:
        return "late bloomers: not looked at, as no eliminated trial was trained to the end; set `resume_pruned`"
    if not summary["eliminated"]:
        return "late bloomers: there are none, as no trial was eliminated"
    return f"of {looked_at} eliminated trials trained to the end, {len(late)} overtook the winner" + (
        f"; {len(failed)} others failed on their way there" if failed else ""
    )


def context_switch_text(summary: Mapping[str, Any]) -> str:
    """What it costs that trials train an epoch at a time."""
    cost = summary["context_switch"]
    return (
        f"taking a trial up and laying it down took {cost['median_seconds']:.2f} s, {cost['median_share']:.1%} of an "
        f"epoch, the medians of {cost['epochs']} epochs"
    )


# The figures of a search as files for papers, and what its page draws them from.


_TICKS = 5  # at most, of an axis of numbers


def search_figures(found: SearchResult) -> dict[str, Figure]:
    """By their names in `TUNING_FIGURES`; without those of the keys where these explain nothing."""
    drawn = {"curves": tuning_figure(trial_curves(found))}
    shares = importances(to_optuna_study(found))
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


def trial_curves(found: SearchResult) -> list[TrialCurve]:
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


def to_optuna_study(found: SearchResult) -> optuna.Study:
    """All trials that have an accuracy, as if they were complete: Optuna looks at no others."""
    space = found.tuning.space
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            create_trial(params=to_optuna_params(space, values), distributions=to_distributions(space), value=curve[-1])
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
    if domain.int_uniform:
        return list(range(low, high + 1, max(1, math.ceil((high - low) / (_TICKS - 1)))))
    return [low + (high - low) * step / (_TICKS - 1) for step in range(_TICKS)]


def _scaled(value: float, *, log: bool) -> float:
    return math.log(value) if log else value


def _text(choice: Any) -> str:
    return json.dumps(choice, sort_keys=True)


# The figures of a search, in one page that needs no network.


_STYLE = "body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em auto;color:#222}h2{margin-top:2em}"


def page(found: SearchResult, name: str, note: str | None = None) -> str:
    """HTML with the learning curves, the keys' importance, and every trial across its values.

    Args:
        note: a sentence above all, without its full stop.
    """
    noted = f"<p><strong>{html.escape(note.capitalize())}.</strong></p>\n" if note else ""
    marks = (
        "The winner is blue; a cross marks an elimination, a dotted line what was trained afterwards to count late "
        "bloomers."
    )
    summary = found.summary()
    late, switching = (html.escape(said(summary)) for said in (late_bloomers_text, context_switch_text))
    saved = (
        f"The rule saved {summary['epochs_saved']} of {summary['epochs_allowed']} epochs; the "
        f"{summary['epochs_afterwards']} that were trained afterwards are not taken off, and the "
        f"{summary['epochs_lost']} that failed trials did not reach are none of its."
    )
    charts = {"Learning curves": (tuning_chart(trial_curves(found)), marks)}
    study = to_optuna_study(found)
    if shares := importances(study):
        said = "Trials are compared by the accuracy after their last epoch, which is an early one for those eliminated."
        charts["Importance of the keys"] = (importance_chart(shares), f"fANOVA over all trials. {said}")
        charts["Trials across their values"] = (_parallel(study), said)
    sections = [
        f"<h2>{title}</h2>\n<p>{text}</p>\n{plotly_html(chart, element_id=f'chart-{number}')}"
        for number, (title, (chart, text)) in enumerate(charts.items())
    ]
    title = html.escape(f"Search {name}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style><script>{plotly_script()}</script></head>\n<body><h1>{title}</h1>\n"
        f'{noted}<p>{saved}</p>\n<p>{late}.</p>\n<p id="switching">{switching}.</p>\n'
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _parallel(study: optuna.Study) -> go.Figure:
    chart = plot_parallel_coordinate(study, target_name="accuracy")
    return chart.update_layout(plotly_layout(x_title="", y_title="") | {"title": None})
