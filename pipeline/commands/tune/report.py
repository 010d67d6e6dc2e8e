"""Figures and HTML page of a search."""

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
from pipeline.stats.formatting import MISSING, aligned_lines
from pipeline.tuning.results import SearchResult
from pipeline.tuning.storage import to_distributions, to_optuna_params

_MAX_TICKS = 5  # of a numeric axis
_PRINTED_TRIALS = 5


def late_bloomers_text(summary: Mapping[str, Any]) -> str:
    """Return how many pruned trials would have overtaken the winner, or why this is unknown.

    Args:
        summary: from `SearchResult.summary`.
    """
    late, n_compared = summary["late_bloomers"], len(summary["finished_afterwards"])
    failed = [failure["trial"] for failure in summary["failed_afterwards"]]
    if summary["winner"]["trial"] in failed:
        return "late bloomers: unknown, since the winner failed before the last epoch"
    if late is None:
        return "late bloomers: unknown, since no pruned trial was trained to the end; set `resume_pruned` to train some"
    if not summary["eliminated"]:
        return "late bloomers: 0, since no trial was pruned"
    return f"of {n_compared} pruned trials trained to the end, {len(late)} overtook the winner" + (
        f"; {len(failed)} others failed before the last epoch" if failed else ""
    )


def context_switch_text(summary: Mapping[str, Any]) -> str:
    """Return the cost of training trials one epoch at a time."""
    cost = summary["context_switch"]
    return (
        f"switching between trials (restore and save) took {cost['median_seconds']:.2f} s, {cost['median_share']:.1%} "
        f"of an epoch (medians of {cost['epochs']} epochs)"
    )


def leaderboard_lines(result: SearchResult) -> list[str]:
    """Return the first trials of the leaderboard as a table: rank, trial, status, accuracy, epochs, values of the keys.

    The accuracy, 0 to 1, is that on the val rows after the trial's last epoch; a trial that failed at once has none.
    """
    rows = [("rank", "trial", "status", "accuracy", "epochs", *result.tuning.space)]
    for rank, trial in enumerate(result.ranking[:_PRINTED_TRIALS], start=1):
        curve, values = result.accuracies[trial], result.values[trial]
        accuracy = f"{curve[-1]:.4f}" if curve else MISSING
        cells = (f"{rank}", f"{trial}", result.status(trial), accuracy, f"{result.outcome.epochs[trial]}")
        rows.append((*cells, *(json.dumps(values[key]) for key in result.tuning.space)))
    return [*aligned_lines(rows, left=len(rows[0]))]


def search_figures(result: SearchResult) -> dict[str, Figure]:
    """Return figures for papers by their names in `TUNING_FIGURES`; key figures only if keys explain variance."""
    figures = {"curves": tuning_figure(trial_curves(result))}
    shares = importances(to_optuna_study(result))
    if not shares:
        return figures
    trials = [trial for trial, curve in enumerate(result.accuracies) if curve]
    keys = [
        key_axis(key, domain, [result.values[trial][key] for trial in trials])
        for key, domain in result.tuning.space.items()
    ]  # fmt: skip
    assert result.outcome.winner is not None
    parallel = parallel_figure(
        keys, [result.accuracies[trial][-1] for trial in trials], winner=trials.index(result.outcome.winner)
    )  # fmt: skip
    return {**figures, "importance": importance_figure(shares), "parallel": parallel}


def trial_curves(result: SearchResult) -> list[TrialCurve]:
    """Return the learning curves of all trials that finished an epoch."""
    return [
        TrialCurve(
            name=f"trial {trial}",
            accuracies=result.finished.get(trial, curve),
            searched=len(curve),
            winner=trial == result.outcome.winner,
            eliminated_after=result.outcome.eliminated_after[trial],
        )
        for trial, curve in enumerate(result.accuracies)
        if curve
    ]


def to_optuna_study(result: SearchResult) -> optuna.Study:
    """Convert all trials with an accuracy to complete trials of Optuna, which ignores others."""
    space = result.tuning.space
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            create_trial(params=to_optuna_params(space, values), distributions=to_distributions(space), value=curve[-1])
            for values, curve in zip(result.values, result.accuracies, strict=True)
            if curve
        ]
    )
    return study


def importances(study: optuna.Study) -> dict[str, float]:
    """Return key -> its share (0 to 1) of the variance in accuracy, by fANOVA (Hutter et al. 2014).

    Empty if no key explains a difference: all trials have the same accuracy or the same values, or there are too few
    trials to split the trees of the forest.
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
    """Return the positions of the trials' values of a key in its domain.

    Args:
        key: of params.yaml.
        domain: of the key.
        values: (trials,), each of the domain.
    """
    if domain.choices:
        ticks = _choice_ticks(domain.choices)
        positions = {text: position for position, text in ticks.items()}
        return KeyAxis(name=key, positions=[positions[_text(value)] for value in values], ticks=ticks)
    log = domain.log_uniform is not None
    low, high = (_scaled(end, log=log) for end in domain.extremes)

    def position(value: float) -> float:
        return (_scaled(value, log=log) - low) / (high - low)

    return KeyAxis(
        name=key,
        positions=[position(value) for value in values],
        ticks={position(value): f"{value:g}" for value in _tick_values(domain)},
    )


def _choice_ticks(choices: Sequence[Any]) -> Mapping[float, str]:
    if len(choices) == 1:
        return {0.5: _text(choices[0])}
    return {index / (len(choices) - 1): _text(choice) for index, choice in enumerate(choices)}


def _tick_values(domain: Domain) -> list[float]:
    """Return the ends of a range and round numbers between them."""
    low, high = domain.extremes
    if domain.log_uniform:
        powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        # Powers too close to an end would overlap its label.
        return [low, *(power for power in powers if low * 1.5 < power < high / 1.5), high]
    if domain.int_uniform:
        return list(range(low, high + 1, max(1, math.ceil((high - low) / (_MAX_TICKS - 1)))))
    return [low + (high - low) * step / (_MAX_TICKS - 1) for step in range(_MAX_TICKS)]


def _scaled(value: float, *, log: bool) -> float:
    return math.log(value) if log else value


def _text(choice: Any) -> str:
    return json.dumps(choice, sort_keys=True)


_STYLE = "body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em auto;color:#222}h2{margin-top:2em}"


def page(result: SearchResult, name: str, note: str | None = None) -> str:
    """Return a self-contained HTML page with learning curves, importance of the keys, and all trials by value.

    Args:
        result: of the search.
        name: of the search.
        note: a sentence at the top, without its full stop.
    """
    note_html = f"<p><strong>{html.escape(note.capitalize())}.</strong></p>\n" if note else ""
    legend = (
        "The winner is blue. A cross marks pruning. A dotted line marks epochs trained afterwards to count late "
        "bloomers."
    )
    summary = result.summary()
    late, switching = (html.escape(text(summary)) for text in (late_bloomers_text, context_switch_text))
    saved = (
        f"The rule saved {summary['epochs_saved']} of {summary['epochs_allowed']} epochs. This does not subtract the "
        f"{summary['epochs_afterwards']} epochs trained afterwards, nor count the {summary['epochs_lost']} epochs that "
        "failed trials did not reach."
    )
    charts = {"Learning curves": (tuning_chart(trial_curves(result)), legend)}
    study = to_optuna_study(result)
    if shares := importances(study):
        basis = "Trials are compared by the accuracy after their last epoch, which is early for pruned trials."
        charts["Importance of the keys"] = (importance_chart(shares), f"fANOVA over all trials. {basis}")
        charts["Trials across their values"] = (_parallel(study), basis)
    sections = [
        f"<h2>{title}</h2>\n<p>{text}</p>\n{plotly_html(chart, element_id=f'chart-{number}')}"
        for number, (title, (chart, text)) in enumerate(charts.items())
    ]
    title = html.escape(f"Search {name}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style><script>{plotly_script()}</script></head>\n<body><h1>{title}</h1>\n"
        f'{note_html}<p>{saved}</p>\n<p>{late}.</p>\n<p id="switching">{switching}.</p>\n'
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _parallel(study: optuna.Study) -> go.Figure:
    chart = plot_parallel_coordinate(study, target_name="accuracy")
    return chart.update_layout(plotly_layout(x_title="", y_title="") | {"title": None})
