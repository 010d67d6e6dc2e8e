"""The metrics that a terminal shows."""

from pathlib import Path

import pytest

from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import build_summary, chosen_metrics
from tests.fixtures.report import params_with, write_artifacts


def test_the_primary_comparison_and_the_kept_share(tmp_path: Path) -> None:
    data, params = DataPaths(root=tmp_path / "data"), params_with()
    write_artifacts(data, params)
    summary = build_summary(load_report_inputs(params, data))
    metrics = chosen_metrics(summary)
    control = params.report.primary
    expected = summary["difference_points"]["digits"][f"filtered_minus_{control}"]
    assert metrics["digits"] == {f"vs_{control}": expected["mean"], "low": expected["low"], "high": expected["high"]}
    assert metrics["digits"]["low"] < metrics["digits"][f"vs_{control}"] < metrics["digits"]["high"]
    assert metrics["kept"] == summary["kept_share"]


@pytest.mark.parametrize("low", [None, 1.0])
def test_what_is_not_known_is_left_out(low: float | None) -> None:
    effect = {"mean": 2.0, "low": low, "high": low}
    studies = [
        {"name": "one", "pooled": [{"primary": True, "control": "full", "estimate": effect}]},
        {"name": "kept", "pooled": [{"primary": True, "control": "random", "estimate": None}]},
        {"name": "two", "pooled": [{"primary": False, "control": "random", "estimate": effect}]},
    ]
    metrics = chosen_metrics({"studies": studies, "kept_share": {"resnet18": 0.9}})
    interval = {} if low is None else {"low": low, "high": low}
    assert metrics == {"one": {"vs_full": 2.0, **interval}, "kept": {"resnet18": 0.9}}
