"""View of the training runs: accuracy against batch size, differences, loss curves.

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
from pipeline.figures.curves import run_chart
from pipeline.figures.rendering import PLOTLY_CONFIG
from pipeline.figures.study_curves import POINTS_TITLE, TOP1_TITLE, accuracy_curves, difference_curves, run_curves
from pipeline.paths import DataPaths
from pipeline.stats.comparisons import AnalysisPlan
from pipeline.stats.formatting import count, plural
from pipeline.stats.replicates import TREATED
from pipeline.stats.runs import Run, run_from_row
from pipeline.stats.study import study_summary
from pipeline.stats.tables import Table, accuracy_table, common_settings, difference_table, excluded_table
from viz.components import problem

_ABOUT_CURVES = (
    "Loss on the training images. The report has curves on the test images, for studies with accuracy_every. "
    "Thin lines are runs, thick lines the means of the finished runs. A cross marks where a run diverged."
)


def studies(data: DataPaths, params: Params) -> list[str]:
    """Return the studies of params.yaml that have results, in the order of the file."""
    return [name for name in params.studies if data.runs(name).exists()]


def batch_sizes(data: DataPaths, params: Params, name: str | None) -> list[int]:
    """Return the batch sizes of a study's runs, ascending.

    Args:
        data: the artifacts.
        params: has the study.
        name: of the study, possibly any value that a browser sends.

    Raises:
        InputError: the study is unknown; its tables are missing or damaged.
    """
    return sorted({run.setting.batch_size for run in _runs(data, params, name)})


def study_view(data: DataPaths, name: str | None, *, params: Params, batch_size: int | None) -> html.Div:
    """Return charts and tables of one study, or a message if a file is missing, damaged or of another run.

    Args:
        data: the artifacts.
        name: of the study; None if no study has results.
        params: has the study and the settings of the report.
        batch_size: of the loss curves.
    """
    try:
        runs = _runs(data, params, name)
        assert name is not None
        correct = open_array(data.correct(name), dtype=np.bool_, ndim=2)
    except InputError as error:
        return problem(str(error))
    report, study_config = params.report, params.studies[name]
    confidence = report.confidence
    plan = AnalysisPlan(
        margin=report.margin / 100, alpha=report.alpha, primary=report.primary, matched=study_config.match,
        n_images=max(1, correct.shape[1]), looks=study_config.looks or (),
        equivalent_sizes=study_config.equivalent_sizes(params.train),
    )  # fmt: skip
    summary = study_summary(name, runs, plan)
    return html.Div(
        [
            *_overview(summary, runs, study_config, plan.equivalent_sizes),
            *_accuracy(summary, confidence, has_replicates=len({run.filter_network for run in runs}) > 1),
            *_differences(summary, confidence),
            *_loss(summary, runs, batch_size),
            *_excluded_runs(summary),
        ],
        className="study",
    )


def _runs(data: DataPaths, params: Params, name: str | None) -> list[Run]:
    # The name may be any value that a browser sends.
    if not isinstance(name, str) or name not in params.studies:
        studies_text = ", ".join(params.studies)
        raise InputError(
            f"{data.root / 'train'}: no results for studies of params.yaml ({studies_text}); run `dvc repro`"
        )
    return [run_from_row(row) for row in read_runs(data.runs(name), data.history(name))]


def _overview(
    summary: Mapping[str, Any], runs: Sequence[Run], study_config: Study, equivalent_sizes: Mapping[int, int]
) -> list[Any]:
    finished = summary["n_cells"] - summary["n_skipped"] - summary["n_diverged"]
    counts = (
        f"{count(finished)} finished, {count(summary['n_diverged'])} diverged, {count(summary['n_skipped'])} skipped"
    )
    parts: list[Any] = [html.H2(summary["name"]), html.P(f"{common_settings(summary)}: {counts}")]
    if not _matches_grid(runs, study_config, equivalent_sizes):
        text = f"These runs differ from the grid of studies.{summary['name']} in params.yaml; run `dvc repro`."
        parts.append(html.P(text, className="stale", role="alert"))
    return parts


def _matches_grid(runs: Sequence[Run], study_config: Study, equivalent_sizes: Mapping[int, int]) -> bool:
    seeds = study_config.seeds
    if study_config.looks and (n := len({run.seed for run in runs})) in study_config.looks:
        seeds = seeds[:n]  # a study that a look decided has its first seeds
    grids = [
        itertools.product(
            study_config.models, sizes, study_config.learning_rates, study_config.weight_decays, arms, seeds
        )
        for sizes, arms in (
            (study_config.batch_sizes, study_config.arms),
            (tuple(equivalent_sizes.values()), (TREATED,)),
        )
    ]  # fmt: skip
    return {point for grid in grids for point in grid} == {(*run.setting, run.arm, run.seed) for run in runs}


def _accuracy(summary: Mapping[str, Any], confidence: float, *, has_replicates: bool) -> list[Any]:
    estimates = [row["top1"] for row in summary["accuracy"] if row["top1"]]
    if not estimates:
        return [html.H2("Accuracy against batch size"), html.P("No run finished.")]
    what = "seeds, or filter replicates if an arm has several" if has_replicates else "seeds"
    return [
        html.H2("Accuracy against batch size"),
        html.P(_interval_note(estimates, what, confidence)),
        _graph("study-accuracy", batch_chart(accuracy_curves(summary), y_title=TOP1_TITLE), view=summary["name"]),
        _table(accuracy_table(summary, confidence)),
    ]


def _differences(summary: Mapping[str, Any], confidence: float) -> list[Any]:
    heading = html.H2("Filtered against the other arms")
    if not summary["pooled"]:
        return [heading, html.P("The study has no filtered arm, or no other arm to compare with it.")]
    parts: list[Any] = [heading, *(html.P(row["sentence"]) for row in summary["pooled"])]
    estimates = [row["estimate"] for row in summary["differences"] if row["estimate"]]
    if estimates:
        chart = batch_chart(difference_curves(summary), y_title=POINTS_TITLE, zero_line=True)
        parts.append(html.P(_interval_note(estimates, "paired seeds or filter replicates", confidence)))
        parts.append(_graph("study-differences", chart, view=summary["name"]))
    return [*parts, _table(difference_table(summary, confidence))]


def _loss(summary: Mapping[str, Any], runs: Sequence[Run], batch_size: int | None) -> list[Any]:
    if batch_size not in {run.setting.batch_size for run in runs}:
        return [html.H2("Training loss"), html.P("Choose a batch size.")]
    assert batch_size is not None
    heading, lines = html.H2(f"Training loss at batch size {batch_size:,}"), run_curves(summary, runs, batch_size)
    if not lines:
        return [heading, html.P("No run with this batch size took a step.")]
    view = f"{summary['name']}-{batch_size}"
    return [heading, html.P(_ABOUT_CURVES), _graph("study-loss", run_chart(lines), view=view)]


def _excluded_runs(summary: Mapping[str, Any]) -> list[Any]:
    """Return the table of runs that are in no mean, with the reasons."""
    if not summary["excluded"]:
        return []
    return [html.H2("Runs without a result"), _table(excluded_table(summary))]


def _interval_note(estimates: Sequence[Mapping[str, Any]], what: str, confidence: float) -> str:
    """Return the number of replicates, and whether they give intervals."""
    sizes, n_without = sorted({row["n"] for row in estimates}), sum(row["low"] is None for row in estimates)
    n = f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]} to {sizes[-1]}"
    if n_without == len(estimates):
        return f"Means over {n} ({what}): too few replicates for intervals, hence no conclusion."
    lacking = (
        f"; {plural(n_without, 'point')} without an interval, as there are too few replicates" if n_without else ""
    )
    return f"Means over {n} ({what}) with {100 * confidence:g} % intervals (Student's t){lacking}."


def _graph(name: str, figure: go.Figure, *, view: str) -> dcc.Graph:
    """Return a chart. It keeps zoom and hidden legend entries as long as `view` does not change."""
    figure.update_layout(uirevision=view)
    return dcc.Graph(id=name, figure=figure, config=PLOTLY_CONFIG)


def _table(table: Table) -> html.Div:
    def cells(kind: Any, values: Sequence[str]) -> html.Tr:
        classes = ["text" if column in table.text else "number" for column in table.columns]
        return html.Tr([kind(value, className=name) for value, name in zip(values, classes, strict=True)])

    rows = [cells(html.Td, row) for row in table.rows]
    return html.Div(html.Table([html.Thead(cells(html.Th, table.columns)), html.Tbody(rows)]), className="wide")
