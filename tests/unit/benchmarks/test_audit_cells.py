"""Cells of tables of audits: run once, kept, and summarized."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import audit_cells
from benchmarks.audit_cells import Cell, measured_speeds, read_results, run_cells, table_rows
from benchmarks.label_noise.detection import MEASURES
from pipeline.config.params import load_params
from pipeline.errors import InputError
from tests.fixtures.projects import write_params


def _result(noise: str, arm: str, seed: int, value: float, scorers: tuple[str, ...] = ("margin",)) -> dict[str, Any]:
    measures = {name: {"value": value + shift} for shift, name in enumerate(MEASURES)}
    cell = {"noise": noise, "arm": arm, "seed": seed, "test_top1": value / 2}
    return {**cell, "scorers": {scorer: {"measures": measures} for scorer in scorers}}


def test_rows_are_means_and_extremes_over_the_seeds_of_each_cell() -> None:
    values = [0.5, 0.25, 0.75]
    results = [_result("a", "one", seed, value) for seed, value in enumerate(values)]
    results += [_result("a", "wider", 0, 0.125, ("margin", "aum"))]
    rows = table_rows(results, ("aum", "margin"))
    assert [(row["arm"], row["scorer"], row["n"]) for row in rows] == [
        ("one", "margin", 3), ("wider", "aum", 1), ("wider", "margin", 1),
    ]  # fmt: skip
    mean, low, high = np.mean(values), min(values), max(values)
    assert rows[0]["AUROC"] == f"{mean:.4f} ({low:.4f} to {high:.4f})"
    assert rows[0]["R@5%"] == f"{mean + 4:.4f} ({low + 4:.4f} to {high + 4:.4f})"
    assert rows[0]["top1"] == f"{mean / 2:.4f} ({low / 2:.4f} to {high / 2:.4f})"
    assert rows[1]["AUROC"] == "0.1250"


def test_clean_labels_have_a_row_of_accuracy_alone() -> None:
    results = [_result("clean", "one", seed, value, ()) for seed, value in enumerate([0.5, 0.75])]
    (row,) = table_rows(results, ("aum", "margin"))
    assert (row["noise"], row["arm"], row["n"]) == ("clean", "one", 2)
    assert row["top1"] == "0.3125 (0.2500 to 0.3750)"
    assert {row[key] for key in ("scorer", "AUROC", "P@5%")} == {"–"}


def test_finished_cells_are_kept_and_the_others_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [Cell(noise="a", arm=arm, seed=0, options=("--work", arm, "--kinds", "pair")) for arm in "xyz"]
    ran: list[str] = []

    def run(arguments: Any) -> list[dict[str, Any]]:
        ran.append(str(arguments.work))
        if ran[-1] == "y" and len(ran) == 2:
            raise KeyboardInterrupt
        return [{"kind": "pair"}]

    monkeypatch.setattr(audit_cells, "run_and_score", run)
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, tmp_path)
    assert [result["arm"] for result in read_results(cells, tmp_path)] == ["x"]
    run_cells(cells, tmp_path)
    assert ran == ["x", "y", "y", "z"]
    assert [result["arm"] for result in read_results(cells, tmp_path)] == ["x", "y", "z"]


def test_speeds_are_measured_once_and_refused_for_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, measured = load_params(write_params(tmp_path)), []
    taken = iter([(5.0, 0.0), (1.0, 0.0), (2.0, 0.0), (9.0, 0.0), (3.0, 0.0), (7.0, 0.0)])

    def measure(function: Any, *arguments: Any) -> tuple[float, float]:
        measured.append(arguments)
        return next(taken)

    monkeypatch.setattr(audit_cells, "in_own_process", measure)
    file, networks = tmp_path / "plan.json", {"small": params, "large": params}
    speeds = measured_speeds(file, networks, tmp_path, {"clock": "cpu"})
    # The median of each network's three, taken in turn.
    assert speeds == {"small": 3.0, "large": 7.0}
    assert measured_speeds(file, networks, tmp_path, {"clock": "cpu"}) == speeds
    assert len(measured) == 6
    assert json.loads(file.read_text()) == {"clock": "cpu", "seconds_per_step": speeds}
    with pytest.raises(InputError) as refused:
        measured_speeds(file, networks, tmp_path, {"clock": "wall"})
    assert refused.value.key == str(file)
