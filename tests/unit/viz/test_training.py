"""The view Training, against numpy and scipy on the rows of the same files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dash import dcc, html
from scipy import stats

from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.config.params import Params
from pipeline.figures.rendering import PLOTLY_CONFIG
from pipeline.paths import DataPaths
from tests.fixtures.dash_components import all_of, parts_of, text_of
from tests.fixtures.golden import check_golden
from tests.fixtures.report import N_TEST, default_outcome, params_with, write_study
from viz.training import study_view

_HOSTILE = '</script><img src="http://evil.example/x.png" onerror="alert(1)">'


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    return DataPaths(root=tmp_path)


def _figure(view: Any, name: str) -> Any:
    return next(graph.figure for graph in all_of(view, dcc.Graph) if graph.id == name)


def _graphs(view: Any) -> set[str]:
    return {graph.id for graph in all_of(view, dcc.Graph)}


def _tables(view: Any) -> list[list[dict[str, str]]]:
    """Each table as rows, head -> cell."""
    found = []
    for table in all_of(view, html.Table):
        head, *rows = [[cell.children for cell in row.children] for row in all_of(table, html.Tr)]
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def _rows(data: DataPaths) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_parquet(data.runs("digits")).to_pylist()
    return rows


def _view(data: DataPaths, params: Params, outcome: Any = default_outcome, batch_size: int | None = 128) -> Any:
    write_study(data, params, "digits", outcome)
    return study_view(data, "digits", params=params, batch_size=batch_size)


ROUNDING = 100 / N_TEST / 12**0.5  # of an accuracy, in points


def _t_interval(values: Any, confidence: float = 0.95, rounding: float = 0.0) -> tuple[float, float]:
    error = np.hypot(stats.sem(values), rounding / len(values) ** 0.5)
    low, high = stats.t.interval(confidence, len(values) - 1, np.mean(values), error)
    return float(low), float(high)


def _ends(trace: Any) -> list[tuple[float, float]]:
    bars = zip(trace.y, trace.error_y.arrayminus, trace.error_y.array, strict=True)
    return [(y - below, y + above) for y, below, above in bars]


def test_means_and_intervals_are_those_of_scipy(data: DataPaths) -> None:
    view = _view(data, params_with(seeds=[0, 1, 2, 3]))
    chart, rows = _figure(view, "study-accuracy"), _rows(data)
    assert {trace.name for trace in chart.data} == {"full", "filtered", "random"}
    for trace in chart.data:
        for index, size in enumerate((32, 128, 512)):
            top1 = [100 * row["top1"] for row in rows if (row["arm"], row["batch_size"]) == (trace.name, size)]
            assert len(top1) == 4
            assert trace.y[index] == pytest.approx(np.mean(top1))
            assert _ends(trace)[index] == pytest.approx(_t_interval(top1, rounding=ROUNDING))
            assert trace.customdata[index][2] == 4


def test_the_table_holds_n_mean_and_standard_deviation(data: DataPaths) -> None:
    accuracy, _ = _tables(_view(data, params_with()))
    assert len(accuracy) == 9
    for shown in accuracy:
        top1 = [row["top1"] for row in _rows(data) if _is_of(row, shown)]
        assert shown["top-1, mean (%)"] == f"{100 * np.mean(top1):.2f}"
        assert shown["sd (points)"] == f"{100 * np.std(top1, ddof=1):.2f}"
        assert shown["n (seeds, or replicates of the filter)"] == "3"


def _is_of(row: Mapping[str, Any], shown: Mapping[str, str]) -> bool:
    return (row["arm"], f"{row['batch_size']:,}") == (shown["arm"], shown["batch size"])


def test_differences_are_paired_by_seed(data: DataPaths) -> None:
    chart, rows = _figure(_view(data, params_with()), "study-differences"), _rows(data)
    top1 = {(row["arm"], row["batch_size"], row["seed"]): 100 * row["top1"] for row in rows}
    assert [trace.name for trace in chart.data] == ["filtered − random", "filtered − full"]
    for trace in chart.data:
        control = trace.name.removeprefix("filtered − ")
        for index, size in enumerate((32, 128, 512)):
            pairs = [top1["filtered", size, seed] - top1[control, size, seed] for seed in range(3)]
            assert trace.y[index] == pytest.approx(np.mean(pairs))
            assert _ends(trace)[index] == pytest.approx(_t_interval(pairs, rounding=2**0.5 * ROUNDING))


def test_the_confidence_is_that_of_the_report(data: DataPaths) -> None:
    params = params_with()
    params = params.model_copy(update={"report": params.report.model_copy(update={"confidence": 0.8})})
    view = _view(data, params)
    trace = next(trace for trace in _figure(view, "study-accuracy").data if trace.name == "full")
    top1 = [100 * row["top1"] for row in _rows(data) if (row["arm"], row["batch_size"]) == ("full", 32)]
    assert _ends(trace)[0] == pytest.approx(_t_interval(top1, 0.8, ROUNDING))


def test_one_seed_has_no_interval_and_says_so(data: DataPaths) -> None:
    view = _view(data, params_with(seeds=[7]))
    for name in ("study-accuracy", "study-differences"):
        for trace in _figure(view, name).data:
            assert np.isnan(np.array(trace.error_y.array, dtype=float)).all()
            assert {entry[1] for entry in trace.customdata} == {"no interval"}


def _some_fail(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row["batch_size"] == 512:
        return {"status": "skipped", "reason": f"512 is too large {_HOSTILE}", "steps": None}
    if (row["batch_size"], row["arm"]) == (128, "full") and row["seed"] > 0:
        return {"status": "diverged", "reason": "the loss stopped being finite"}
    return default_outcome(row)


def test_runs_without_a_result_are_named_with_their_reason(data: DataPaths) -> None:
    view = _view(data, params_with(), _some_fail)
    left_out = {(row["batch size"], row["arm"]): row for row in _tables(view)[-1]}
    assert left_out["128", "full"] | {"batch size": "", "arm": ""} == {
        "batch size": "",
        "arm": "",
        "status": "diverged",
        "seeds": "1, 2",
        "reason": "the loss stopped being finite",
    }
    assert {arm for size, arm in left_out if size == "512"} == {"full", "filtered", "random"}
    assert {tuple(trace.x) for trace in _figure(view, "study-loss").data} == {(1, 15, 45)}


def test_loss_curves_are_all_runs_and_the_mean_of_the_finished(data: DataPaths) -> None:
    chart = _figure(_view(data, params_with(), _some_fail), "study-loss")
    thin = [trace for trace in chart.data if trace.line.width == 1]
    thick = {trace.name: trace for trace in chart.data if trace.line.width != 1}
    assert len(thin) == 9
    loss = {seed: [2.3 / step + seed / 10 for step in (1, 15, 45)] for seed in range(3)}
    np.testing.assert_allclose(thick["filtered"].y, np.mean(list(loss.values()), axis=0))
    np.testing.assert_allclose(thick["full"].y, loss[0])
    diverged = [trace for trace in thin if trace.marker.symbol == "x" and "markers" in trace.mode]
    assert sorted(trace.hovertemplate.split(", step")[0] for trace in diverged) == [
        "seed 1, diverged",
        "seed 2, diverged",
    ]


def _write_replicates(data: DataPaths) -> Params:
    """Write a study with two filter replicates and two seeds."""
    params = params_with(["resnet18", "resnet18-r1"], seeds=[0, 1], filter_replicates=2)
    write_study(data, params, "digits")
    first = read_parquet(data.runs("digits"))
    other = [
        {**row, "filter_network": "resnet18-r1", "top1": row["top1"] + 0.01}
        for row in first.to_pylist()
        if row["arm"] != "full"
    ]
    write_parquet(data.runs("digits"), pa.concat_tables([first, pa.Table.from_pylist(other, schema=first.schema)]))
    return params


def test_a_study_that_a_look_decided_matches_its_grid(data: DataPaths) -> None:
    planned = params_with(seeds=[0, 1, 2], looks=[2, 3])
    for n, stale in ((1, True), (2, False), (3, False)):
        write_study(data, params_with(seeds=list(range(n))), "digits")
        view = study_view(data, "digits", params=planned, batch_size=32)
        assert ("differ from the grid" in text_of(view)) == stale, n


def test_filter_replicates_are_the_replicates_if_there_are_several(data: DataPaths) -> None:
    """Replicates and seeds each add their spread to the mean, and no run loses its name."""
    view = study_view(data, "digits", params=_write_replicates(data), batch_size=32)
    trace = next(trace for trace in _figure(view, "study-accuracy").data if trace.name == "filtered")
    top1 = {
        (row["filter_network"], row["seed"]): 100 * row["top1"]
        for row in _rows(data)
        if (row["arm"], row["batch_size"]) == ("filtered", 32)
    }
    table = np.array([[top1[replicate, seed] for seed in (0, 1)] for replicate in ("resnet18", "resnet18-r1")])
    error = np.sqrt(stats.sem(table.mean(axis=0)) ** 2 + stats.sem(table.mean(axis=1)) ** 2 + ROUNDING**2 / 4)
    assert _ends(trace)[0] == pytest.approx(stats.t.interval(0.95, 1, table.mean(), error))
    thin = [trace.hovertemplate for trace in _figure(view, "study-loss").data if trace.line.width == 1]
    assert sorted(text.split(", step")[0] for text in thin)[:4] == [
        *["seed 0, filter of resnet18"] * 3,
        "seed 0, filter of resnet18-r1",
    ]


def test_a_batch_size_without_steps_or_runs_has_no_curves(data: DataPaths) -> None:
    params = params_with()
    assert "study-loss" not in _graphs(_view(data, params, _some_fail, batch_size=512))
    for size in (None, 33):
        assert "study-loss" not in _graphs(study_view(data, "digits", params=params, batch_size=size))


def _all_diverge(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"status": "diverged", "reason": "not finite"}


def test_without_a_finished_run_there_are_only_loss_curves(data: DataPaths) -> None:
    view = _view(data, params_with(), _all_diverge)
    assert _graphs(view) == {"study-loss"}
    assert len(_tables(view)[-1]) == 9


def test_arms_that_cannot_be_compared_have_no_differences(data: DataPaths) -> None:
    view = _view(data, params_with(arms=["full", "random"]))
    assert _graphs(view) == {"study-accuracy", "study-loss"}


def test_texts_of_the_page(data: DataPaths) -> None:
    four = params_with(seeds=[0, 1, 2, 3])
    at_80 = four.model_copy(update={"report": four.report.model_copy(update={"confidence": 0.8})})
    views = {
        "four seeds": _view(data, four),
        "confidence 0.8": _view(data, at_80),
        "one seed": _view(data, params_with(seeds=[7])),
        "failed runs": _view(data, params_with(), _some_fail),
        "a batch size without steps": _view(data, params_with(), _some_fail, batch_size=512),
        "no batch size": _view(data, params_with(), batch_size=None),
        "another batch size": _view(data, params_with(), batch_size=33),
        "nothing finished": _view(data, params_with(), _all_diverge),
        "no filtered arm": _view(data, params_with(arms=["full", "random"])),
        "filter replicates": study_view(data, "digits", params=_write_replicates(data), batch_size=32),
    }
    _view(data, params_with(seeds=[0, 1]))
    views["another grid"] = study_view(data, "digits", params=params_with(), batch_size=32)
    views["another study"] = study_view(data, "leftover", params=params_with(), batch_size=32)
    lines = []
    for name, view in views.items():
        axes = [(graph.figure.layout.xaxis, graph.figure.layout.yaxis) for graph in all_of(view, dcc.Graph)]
        lines += [f"# {name}", *(text_of(part) for part in all_of(view, html.P))]
        lines += [f"{y.title.text} against {x.title.text}" for x, y in axes] + [""]
    check_golden("training_page.txt", "\n".join(lines).replace(str(data.root), "DATA"))


def test_every_model_and_learning_rate_has_its_own_line(data: DataPaths) -> None:
    view = _view(data, params_with(models=["resnet18", "resnet50"], learning_rates=[0.01, 0.1]))
    expected = {
        f"{arm}, {model}, lr {rate}"
        for arm in ("full", "filtered", "random")
        for model in ("resnet18", "resnet50")
        for rate in (0.01, 0.1)
    }
    assert {trace.name for trace in _figure(view, "study-accuracy").data} == expected
    loss = _figure(view, "study-loss").data
    assert {trace.name for trace in loss if trace.showlegend is not False} == expected
    assert len(loss) == 12 * 3 + 12
    accuracy = _tables(view)[0]
    assert len({(row["model"], row["learning rate"], row["batch size"], row["arm"]) for row in accuracy}) == 36


def test_hostile_names_are_text(data: DataPaths) -> None:
    def hostile(row: Mapping[str, Any]) -> Mapping[str, Any]:
        model = f"{_HOSTILE}{row['model']}" if row["seed"] else row["model"]
        return {**_some_fail(row), "model": model}

    view = _view(data, params_with(), hostile)
    assert {type(part) for part in parts_of(view) if not isinstance(part, str)} <= {
        *(html.Div, html.H2, html.P, html.Table, html.Thead, html.Tbody, html.Tr, html.Th, html.Td, dcc.Graph)
    }
    for graph in all_of(view, dcc.Graph):
        labels = [trace.name + (trace.hovertemplate or "") for trace in graph.figure.data]
        assert any("&lt;img" in label for label in labels)
        assert not any("<img" in label for label in labels)
    assert _HOSTILE in text_of(view)


def test_charts_cannot_be_uploaded_and_have_no_background(data: DataPaths) -> None:
    assert (PLOTLY_CONFIG["showSendToCloud"], PLOTLY_CONFIG["plotlyServerURL"]) == (False, "")
    graphs = all_of(_view(data, params_with()), dcc.Graph)
    assert len(graphs) == 3
    for graph in graphs:
        assert graph.config == PLOTLY_CONFIG
        assert {graph.figure.layout.paper_bgcolor, graph.figure.layout.plot_bgcolor} == {"rgba(0,0,0,0)"}
