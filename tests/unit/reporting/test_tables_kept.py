"""The table of kept images: shares next to the paper's, and where each share comes from."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import DBSCAN

from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.render import report_content
from pipeline.reporting.summary import build_summary
from pipeline.reporting.tables import kept_table
from pipeline.scoring.density import release_radii_by_class
from pipeline.scoring.thresholds import score
from tests.fixtures.report import N_TRAIN, params_with, write_artifacts

_PARAMS = params_with(["resnet18"])


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    data = DataPaths(root=tmp_path)
    write_artifacts(data, _PARAMS)
    return data


def _network(data: DataPaths) -> dict[str, Any]:
    (network,) = build_summary(load_report_inputs(_PARAMS, data))["networks"]
    return dict(network)


def _row(network: dict[str, Any]) -> dict[str, str]:
    table = kept_table([network], table_one=True)
    (cells,) = table.rows
    return dict(zip(table.columns, cells, strict=True))


def test_table_one_is_compared_with_the_paper(data: DataPaths) -> None:
    row = _row(_network(data))
    assert (row["kept (%)"], row["paper, CIFAR-10: kept (%)"]) == ("92.50", "93.79")
    assert row["origin of the share"].startswith("requested: 5.00 %")


def test_the_papers_columns_are_those_of_table_one_alone(data: DataPaths) -> None:
    network = _network(data)
    plain, compared = (kept_table([network], table_one=table_one) for table_one in (False, True))
    added = {"paper, CIFAR-10: kept (%)", "at DBSCAN's defaults, eps 0.5: kept (%)"}
    assert set(compared.columns) - set(plain.columns) == added
    shown = [cell for name, cell in zip(compared.columns, compared.rows[0], strict=True) if name not in added]
    assert shown == list(plain.rows[0])


@pytest.mark.parametrize(
    ("dataset", "figure", "shown"),
    [
        ("digits", None, False),
        ("cifar10", None, True),
        ("image_folder", "gahlot-2020-table1", True),
        ("image_folder", "mccord-2021-fig8", False),
    ],
)
def test_table_one_is_about_cifar10(data: DataPaths, dataset: str, figure: str | None, shown: bool) -> None:
    params = params_with(["resnet18"], paper_figure=figure)
    summary = build_summary(load_report_inputs(params, data))
    summary["data"] = [{**summary["data"][0], "dataset": dataset}]
    content = report_content(params, summary)
    assert content["table_one"] == ("paper, CIFAR-10: kept (%)" in content["tables"]["kept"].columns) == shown


def test_the_share_at_the_defaults_is_that_of_scikit_learns_dbscan(data: DataPaths) -> None:
    xy = np.random.default_rng(3).normal(scale=0.6, size=(N_TRAIN, 2))
    points = read_parquet(data.points("resnet18"))
    labels = points["label"].to_numpy()
    radii = release_radii_by_class(xy, labels, min_samples=5)
    thresholds = np.linspace(0.7, 0.9, N_TRAIN)
    for name, values in (("eps", thresholds), ("score", score(radii, thresholds))):
        points = points.set_column(points.column_names.index(name), name, [values])
    write_parquet(data.points("resnet18"), points)
    noise = np.concatenate([DBSCAN(eps=0.5, min_samples=5).fit(xy[labels == k]).labels_ == -1 for k in range(4)])
    assert 0 < noise.mean() < 1
    assert _network(data)["default_kept_share"] == pytest.approx(1 - noise.mean())


@pytest.mark.parametrize(
    "scorer",
    [
        {"name": "label_odds"},
        {"name": "dbscan", "space": "components", "min_samples": 5},
        {"name": "dbscan", "space": "embedding", "min_samples": 10},
    ],
    ids=str,
)
def test_other_filters_have_no_share_at_those_defaults(data: DataPaths, scorer: dict[str, Any]) -> None:
    metrics = read_json(data.filter_metrics("resnet18"))
    write_json(data.filter_metrics("resnet18"), {**metrics, "settings": {"scorer": scorer, "eps": None}})
    assert _row(_network(data))["at DBSCAN's defaults, eps 0.5: kept (%)"] == "–"


def test_the_share_of_a_given_eps_is_measured(data: DataPaths) -> None:
    network = _network(data) | {"requested_drop_share": None}
    assert _row(network)["origin of the share"].startswith("measured: ")
    missed = network | {"requested_drop_share": 0.05, "share_note": "0.0750 is the nearest"}
    assert _row(missed)["origin of the share"].endswith("; 0.0750 is the nearest")
    estimate = {"share": 0.05, "low": 0.04, "high": 0.06}
    wrong = {"extrapolated": estimate, "confident_joint": estimate | {"share": 0.055}, "confidence": 0.95}
    origin = _row(missed | {"wrong_share": wrong})["origin of the share"]
    assert re.findall(r"\d+\.\d+ %", origin) == ["5.00 %", "6.00 %", "5.50 %", "6.00 %"]
    assert origin.startswith("estimated ")


@pytest.mark.parametrize(
    ("eps", "origin"),
    [
        (1.5, "measured: "),
        ("knee", "searched: knee "),
        ("tuned", "searched: tuned "),
        ({"name": "tuned", "planted_fraction": 0.1}, "searched: tuned "),
    ],
)
def test_the_origin_of_the_share_names_the_search(data: DataPaths, eps: Any, origin: str) -> None:
    metrics = read_json(data.filter_metrics("resnet18"))
    settings = metrics["settings"] | {"eps": eps}
    write_json(data.filter_metrics("resnet18"), {**metrics, "requested_share": None, "settings": settings})
    assert _row(_network(data))["origin of the share"].startswith(origin)
