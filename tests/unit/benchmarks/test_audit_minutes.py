"""Uses of the minutes: equal steps, and the gains over one network."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.audit_minutes import SCORERS, USES, gain_rows, iter_cells
from benchmarks.label_noise.arguments import parse
from benchmarks.label_noise.cases import Case
from benchmarks.label_noise.planning import CasePlan
from pipeline.artifacts.files import read_json
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.iteration import write_project
from tests.fixtures.label_noise import forked_own_processes
from tests.fixtures.source_tree import ROOT
from tests.fixtures.training import run

_SPEEDS = {"resnet9": 0.25, "resnet9_wide": 0.75}


def _arguments(folder: Path, **changes: Any) -> argparse.Namespace:
    defaults = {
        "data": folder / "data", "work": folder / "work", "params": ROOT / "presets/audit.yaml", "images": None,
        "seconds": 600.0, "clock": "cpu", "kinds": ["symmetric", "pair"], "rates": [0.1], "labels": None,
        "seeds": [3, 4], "uses": list(USES), "drop_share": 0.2,
    }  # fmt: skip
    return argparse.Namespace(**{**defaults, **changes})


def test_each_use_has_its_minutes_as_steps_of_its_network(tmp_path: Path) -> None:
    arguments = _arguments(tmp_path)
    cells = list(iter_cells(arguments, load_params(arguments.params), _SPEEDS))
    seconds = {}
    for cell in cells[: len(USES)]:
        parsed = parse("", cell.options)
        network = load_params(parsed.params).networks[0]
        (case,) = (
            Case(kind=kind, rate=rate, variant=variant, folds=folds)
            for kind in parsed.kinds
            for rate in parsed.rates
            for variant in parsed.variants
            for folds in parsed.folds
        )
        plan = CasePlan(base=DataPaths(), seconds=parsed.seconds, step_seconds=parsed.seconds_per_step)
        seconds[cell.arm] = plan.steps(case.n_networks) * case.n_networks * _SPEEDS[network]
        assert load_params(parsed.params).finetune.seed == parsed.seed == cell.seed == 3
        assert parsed.scorers == list(SCORERS)
    assert seconds == {use: pytest.approx(1200 if use == "twice" else 600) for use in USES}
    # Each seed is complete before the next, and each noise before the next.
    assert [(cell.seed, cell.noise) for cell in cells[:: len(USES)]] == [
        (seed, noise) for seed in (3, 4) for noise in ("symmetric-0.1", "pair-0.1")
    ]


def test_gains_are_of_pairs_with_the_same_noise_and_seed() -> None:
    def result(arm: str, seed: int, value: float) -> dict[str, Any]:
        measures = {name: {"value": value * factor} for name, factor in (("auroc", 1), ("precision_at_5_percent", 2))}
        cell = {"noise": "a", "arm": arm, "seed": seed}
        return {**cell, "scorers": {"aum": {"measures": measures}}}

    ones, wider = [0.5, 0.25, 0.75], {0: 0.75, 2: 0.625, 9: 1.0}
    results = [result("one", seed, value) for seed, value in enumerate(ones)]
    results += [result("wider", seed, value) for seed, value in wider.items()]
    (row,) = gain_rows(results)
    gains = np.array([wider[seed] - ones[seed] for seed in (0, 2)])
    assert row["n"] == 2, "seed 9 has no pair"
    for name, factor in (("auroc", 1), ("precision_at_5_percent", 2)):
        low, high = factor * gains.min(), factor * gains.max()
        assert row[f"{name} minus one"] == f"{factor * gains.mean():.4f} ({low:.4f} to {high:.4f})"


@pytest.mark.slow
def test_two_networks_share_the_minutes_and_train_once(tmp_path: Path) -> None:
    write_project(tmp_path, finetune={"batch_size": 16, "checkpoint": {"steps": 50}})
    places = {"--data": tmp_path / "data", "--params": tmp_path / "params.yaml", "--work": tmp_path / "work"}
    command = [sys.executable, "-m", "benchmarks.audit_minutes"]
    command += [str(part) for pair in places.items() for part in pair]
    command += [
        "--kinds",
        "symmetric",
        "--rates",
        "0.1",
        "--seeds",
        "0",
        "--uses",
        "two_rounds",
        "two_averaged",
        "--seconds",
        "1",
    ]
    done = run(command, timeout=500, environ=forked_own_processes(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    work = tmp_path / "work/cells/symmetric-0.1-seed0/resnet18-1x"
    assert "2 of 2 cells are finished" in done.stdout
    folders = ("half", "half_again", "kept", "two_rounds", "averaged")
    assert {path.name for path in work.glob("symmetric-*")} == {f"symmetric-0.1-{name}-folds1" for name in folders}
    results = {path.stem: read_json(path) for path in (tmp_path / "work/results").glob("*.json")}
    assert {result["filter"] for result in results.values()} == {None}
    steps = {result["steps"] for result in results.values()}
    speed = read_json(tmp_path / "work/plan.json")["seconds_per_step"]["resnet18"]
    assert steps == {max(1, int(0.5 / speed))}
    stamps = {path: path.stat().st_mtime_ns for path in work.rglob("*provenance.json")}
    again = run([*command, "--summarize"])
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[:3] == done.stdout.splitlines()[-len(again.stdout.splitlines()) :][:3]
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*provenance.json")} == stamps
    kept = DataPaths(root=work / "symmetric-0.1-kept-folds1/data")
    assert read_json(kept.prepare_metrics)["n_train"] == 108
