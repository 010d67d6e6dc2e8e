"""What the app shows of the training runs: accuracy against batch size, differences, loss curves.

The numbers are those of the report, from the same functions.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dash import dcc, html
from plotly import graph_objects as go

from pipeline.artifacts.files import open_array
from pipeline.artifacts.runs import read_runs
from pipeline.config.params import Params
from pipeline.config.study import Study
from pipeline.errors import InputError
from pipeline.figures.batch_curves import batch_chart
from pipeline.figures.rendering import PLOTLY_CONFIG
from pipeline.figures.run_curves import run_chart
from pipeline.figures.study_curves import POINTS_TITLE, TOP1_TITLE, accuracy_curves, difference_curves, run_curves
from pipeline.paths import DataPaths
from pipeline.stats.comparisons import AnalysisPlan
from pipeline.stats.formatting import count, plural
from pipeline.stats.runs import Run, run_from_row
from pipeline.stats.study import study_summary
from pipeline.stats.tables import Table, accuracy_table, common_settings, difference_table, excluded_table
from viz.components import problem

_ABOUT_CURVES = (
    "Losses are of the training images; curves of the test images, for studies with accuracy_every, are in the report. "
    "Thin lines are runs, thick ones the means of those that finished; a cross ends a run that diverged."
)


def studies(data: DataPaths, params: Params) -> list[str]:
    """The studies of params.yaml that have results, in its order."""
    return [name for name in params.studies if data.runs(name).exists()]


def batch_sizes(data: DataPaths, params: Params, name: str | None) -> list[int]:
    """Those of a study's runs, ascending.

    Raises:
        InputError: as `study_view` shows it.
    """
    return sorted({run.setting.batch_size for run in _runs(data, params, name)})


def study_view(data: DataPaths, name: str | None, *, params: Params, batch_size: int | None) -> html.Div:
    """Charts and tables of one study; in their place a message where a file is missing, damaged or of another run.

    Args:
        name: of the study; None where none has results.
        batch_size: of the loss curves.
    """
    try:
        runs = _runs(data, params, name)
        assert name is not None
        correct = open_array(data.correct(name), dtype=np.bool_, ndim=2)
    except InputError as error:
        return problem(str(error))
    report, map_controls = params.report, params.studies[name]
    confidence = report.confidence
    plan = AnalysisPlan(
        margin=report.margin / 100, alpha=report.alpha, primary=report.primary, matched=map_controls.match,
        n_images=max(1, correct.shape[1]), looks=map_controls.looks or (),
    )  # fmt: skip
    study = study_summary(name, runs, plan)
    return html.Div(
        [
            *_overview(study, runs, map_controls),
            *_accuracy(study, confidence, several_draws=len({run.filter_network for run in runs}) > 1),
            *_differences(study, confidence),
            *_loss(study, runs, batch_size),
            *_left_out(study),
        ],
        className="study",
    )


def _runs(data: DataPaths, params: Params, name: str | None) -> list[Run]:
    """One reading of both tables. The name may be anything that a browser sends."""
    if not isinstance(name, str) or name not in params.studies:
        known = ", ".join(params.studies)
        raise InputError(f"{data.root / 'train'}: no results of a study of params.yaml ({known}); run `dvc repro`")
    return [run_from_row(row) for row in read_runs(data.runs(name), data.history(name))]


def _overview(study: Mapping[str, Any], runs: Sequence[Run], map_controls: Study) -> list[Any]:
    finished = study["n_cells"] - study["n_skipped"] - study["n_diverged"]
    counts = f"{count(finished)} finished, {count(study['n_diverged'])} diverged, {count(study['n_skipped'])} skipped"
    parts: list[Any] = [html.H2(study["name"]), html.P(f"{common_settings(study)}: {counts}")]
    if not _matches_grid(runs, map_controls):
        text = f"These are not the cells that studies.{study['name']} in params.yaml asks for now; run `dvc repro`."
        parts.append(html.P(text, className="stale", role="alert"))
    return parts


def _matches_grid(runs: Sequence[Run], map_controls: Study) -> bool:
    grid = itertools.product(
        map_controls.models,
        map_controls.batch_sizes,
        map_controls.learning_rates,
        map_controls.weight_decays,
        map_controls.arms,
        map_controls.seeds,
    )
    return set(grid) == {(*run.setting, run.arm, run.seed) for run in runs}


def _accuracy(study: Mapping[str, Any], confidence: float, *, several_draws: bool) -> list[Any]:
    estimates = [row["top1"] for row in study["accuracy"] if row["top1"]]
    if not estimates:
        return [html.H2("Accuracy against batch size"), html.P("No run finished.")]
    what = "seeds, or draws of the filter where an arm has several" if several_draws else "seeds"
    return [
        html.H2("Accuracy against batch size"),
        html.P(_certainty(estimates, what, confidence)),
        _graph("study-accuracy", batch_chart(accuracy_curves(study), y_title=TOP1_TITLE), view=study["name"]),
        _table(accuracy_table(study, confidence)),
    ]


def _differences(study: Mapping[str, Any], confidence: float) -> list[Any]:
    heading = html.H2("Filtered against the other arms")
    if not study["pooled"]:
        return [heading, html.P("The study has no filtered arm, or nothing to compare it with.")]
    parts: list[Any] = [heading, *(html.P(row["sentence"]) for row in study["pooled"])]
    estimates = [row["estimate"] for row in study["differences"] if row["estimate"]]
    if estimates:
        chart = batch_chart(difference_curves(study), y_title=POINTS_TITLE, zero_line=True)
        parts.append(html.P(_certainty(estimates, "paired seeds, or draws of the filter", confidence)))
        parts.append(_graph("study-differences", chart, view=study["name"]))
    return [*parts, _table(difference_table(study, confidence))]


def _loss(study: Mapping[str, Any], runs: Sequence[Run], batch_size: int | None) -> list[Any]:
    if batch_size not in {run.setting.batch_size for run in runs}:
        return [html.H2("Training loss"), html.P("Choose a batch size.")]
    assert batch_size is not None
    heading, lines = html.H2(f"Training loss at batch size {batch_size:,}"), run_curves(study, runs, batch_size)
    if not lines:
        return [heading, html.P("No run of this batch size took a step.")]
    view = f"{study['name']}-{batch_size}"
    return [heading, html.P(_ABOUT_CURVES), _graph("study-loss", run_chart(lines), view=view)]


def _left_out(study: Mapping[str, Any]) -> list[Any]:
    """Every run that is in no mean, with its reason."""
    if not study["excluded"]:
        return []
    return [html.H2("Runs without a result"), _table(excluded_table(study))]


def _certainty(estimates: Sequence[Mapping[str, Any]], what: str, confidence: float) -> str:
    """How many replicates there are, and whether they give intervals."""
    sizes, without = sorted({row["n"] for row in estimates}), sum(row["low"] is None for row in estimates)
    n = f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]} to {sizes[-1]}"
    if without == len(estimates):
        return f"Means over {n} ({what}): no intervals, hence no conclusion."
    lacking = f"; {plural(without, 'point')} without one, for want of replicates" if without else ""
    return f"Means over {n} ({what}), each with its {100 * confidence:g} % interval (Student's t){lacking}."


def _graph(name: str, figure: go.Figure, *, view: str) -> dcc.Graph:
    """What readers zoom to and hide in the legend stays as long as `view` does."""
    figure.update_layout(uirevision=view)
    return dcc.Graph(id=name, figure=figure, config=PLOTLY_CONFIG)


def _table(table: Table) -> html.Div:
    def cells(kind: Any, values: Sequence[str]) -> html.Tr:
        classes = ["text" if column in table.text else "number" for column in table.columns]
        return html.Tr([kind(value, className=name) for value, name in zip(values, classes, strict=True)])

    rows = [cells(html.Td, row) for row in table.rows]
    return html.Div(html.Table([html.Thead(cells(html.Th, table.columns)), html.Tbody(rows)]), className="wide")
