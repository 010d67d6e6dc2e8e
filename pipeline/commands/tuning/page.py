"""The figures of a search, in one page that needs no network."""

import html

import optuna
from optuna.visualization import plot_parallel_coordinate
from plotly import graph_objects as go

from pipeline.commands.tuning.figures import as_optuna, importances, trial_curves
from pipeline.commands.tuning.wording import late_bloomers_said, switching_said
from pipeline.tuning.results import Found
from viz.figures.rendering import plotly_html, plotly_layout, plotly_script
from viz.figures.tuning_curves import tuning_chart
from viz.figures.tuning_keys import importance_chart

_STYLE = "body{font:15px system-ui,sans-serif;max-width:1000px;margin:2em auto;color:#222}h2{margin-top:2em}"


def page(found: Found, name: str, note: str | None = None) -> str:
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
    late, switching = (html.escape(said(summary)) for said in (late_bloomers_said, switching_said))
    saved = (
        f"The rule saved {summary['epochs_saved']} of {summary['epochs_allowed']} epochs; the "
        f"{summary['epochs_afterwards']} that were trained afterwards are not taken off, and the "
        f"{summary['epochs_lost']} that failed trials did not reach are none of its."
    )
    charts = {"Learning curves": (tuning_chart(trial_curves(found)), marks)}
    study = as_optuna(found)
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
