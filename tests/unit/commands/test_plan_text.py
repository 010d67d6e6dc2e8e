"""Golden text of `plan`, for invented speeds, costs and disk."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.commands.plan import command as plan
from pipeline.commands.plan.cost import PlannedCost
from pipeline.commands.plan.jobs import PlannedRun, finetune_run, planned_runs
from pipeline.commands.plan.size import DataSize, StudyPlan
from pipeline.commands.plan.speed import Speed, Workload
from pipeline.config.params import Params
from tests.fixtures.golden import check_golden
from tests.fixtures.plan import SPEED
from tests.fixtures.projects import ROOT

_RUNNING = frozenset({"prepare", "finetune@resnet18", "filter@resnet18", "train@digits", "train@again", "report"})
_COST = PlannedCost(seconds=7.0, memory=2.5e9, disk=640_000.0)


def _write_params(path: Path) -> None:
    """Two studies that share the runs of one seed, and one batch that is larger than what the filter leaves."""
    yaml = YAML(typ="safe", pure=True)
    tree = yaml.load((ROOT / "tests" / "params.yaml").read_text())
    digits = tree["studies"]["digits"] | {"batch_sizes": [32, 2048]}
    tree["studies"] = {"digits": digits, "again": digits | {"seeds": [0, 7]}}
    tree["train"]["workers"] = 1
    with path.open("w") as file:
        yaml.dump(tree, file)


def _made_up_costs(_: Params, running: Iterable[str], *__: Any) -> dict[str, PlannedCost]:
    return {stage: replace(_COST, seconds=_COST.seconds * 40**row) for row, stage in enumerate(sorted(running))}


def _made_up_speeds(runs: Iterable[PlannedRun]) -> dict[Workload, Speed]:
    return {run.workload: SPEED for run in runs}


def test_plan_prints_table_and_remarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too little disk and memory, skipped and shared runs, two processes, stages that are up to date."""

    def on_one_process(params: Params, network: str, size: DataSize) -> PlannedRun:
        return replace(finetune_run(params, network, size), workers=1, threads=1)

    def on_two_processes(params: Params, name: str, study: StudyPlan) -> list[PlannedRun]:
        return [replace(run, workers=2, threads=1) for run in planned_runs(params, name, study)]

    made_up = {
        "stages_to_run": lambda *_: _RUNNING,
        "plan_hash": lambda _: "0123456789abcdef",
        "finetune_run": on_one_process,
        "planned_runs": on_two_processes,
        "measure_all": _made_up_speeds,
        "stage_costs": _made_up_costs,
        "total_memory": lambda: 2e9,
        "time": SimpleNamespace(monotonic=iter([100.0, 112.0]).__next__),
        "shutil": SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=3.2e6)),
    }
    for name, value in made_up.items():
        monkeypatch.setattr(plan, name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.chdir(tmp_path)
    _write_params(tmp_path / "other.yaml")
    assert main(["plan", "--params", "other.yaml"]) == 0
    check_golden("plan.txt", capsys.readouterr().out)
