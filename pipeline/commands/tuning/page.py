"""The figures of a search, in one page that needs no network."""

import html

import optuna
from optuna.importance import FanovaImportanceEvaluator
from optuna.trial import create_trial
from optuna.visualization import plot_parallel_coordinate, plot_param_importances
from plotly import graph_objects as go

from pipeline.tuning.results import Found
from pipeline.tuning.sampling import distributions_of, drawn_of
from viz.figures.rendering import plotly_html, plotly_layout, plotly_script
from viz.figures.tuning_curves import TrialCurve, tuning_chart

_STYLE = "body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em auto;color:#222}h2{margin-top:2em}"


def page(found: Found, name: str) -> str:
    """HTML with the learning curves, the keys' importance, and every trial across its values."""
    marks = (
        "The winner is blue; a cross marks an elimination, a dotted line what was trained afterwards to count late "
        "bloomers."
    )
    charts = {"Learning curves": (tuning_chart(_curves(found)), marks)}
    study = _as_optuna(found)
    if len({trial.value for trial in study.trials}) > 1:
        said = "Trials are compared by the accuracy after their last epoch, which is an early one for those eliminated."
        charts["Importance of the keys"] = (_importances(study), f"fANOVA over all trials. {said}")
        charts["Trials across their values"] = (_parallel(study), said)
    sections = [
        f"<h2>{title}</h2>\n<p>{text}</p>\n{plotly_html(chart, element_id=f'chart-{number}')}"
        for number, (title, (chart, text)) in enumerate(charts.items())
    ]
    title = html.escape(f"Search {name}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style><script>{plotly_script()}</script></head>\n<body><h1>{title}</h1>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _curves(found: Found) -> list[TrialCurve]:
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


def _as_optuna(found: Found) -> optuna.Study:
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


def _importances(study: optuna.Study) -> go.Figure:
    chart = plot_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return _in_style(chart, x_title="share of the variance in accuracy")


def _parallel(study: optuna.Study) -> go.Figure:
    return _in_style(plot_parallel_coordinate(study, target_name="accuracy"))


def _in_style(chart: go.Figure, *, x_title: str = "") -> go.Figure:
    return chart.update_layout(plotly_layout(x_title=x_title, y_title="") | {"title": None})
