from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_report import default_outcome, params_with, write_artifacts

from pipeline.paths import DataPaths
from pipeline.reporting.costs import ArmCost, Cost, arm_costs
from pipeline.reporting.inputs import StudyInputs, load_inputs
from pipeline.reporting.tables import cost_table

RECORDS: dict[str, dict[str, Any]] = {
    "prepare": {"wall_s": 1000.0, "peak_memory_mb": 9999.0, "images": 120},
    "finetune@resnet18": {"wall_s": 20.0, "peak_memory_mb": 900.0, "images": 5000, "peak_gpu_memory_mb": 70.0},
    "extract@resnet18": {"wall_s": 3.0, "peak_memory_mb": 300.0, "images": 120},
    "reduce@resnet18": {"wall_s": 9.0, "peak_memory_mb": 200.0, "images": 120},
    "filter@resnet18": {"wall_s": 1.0, "peak_memory_mb": 100.0, "images": 80},
    "train@digits": {
        "wall_s": 70.0,
        "peak_memory_mb": 800.0,
        "images": 1,
        "arms_wall_s": {"full": 21.0, "filtered": 20.0, "random": 22.0},
    },
}


@pytest.fixture
def study(tmp_path: Path) -> StudyInputs:
    """Three batch sizes of 45 steps, three seeds; those of batch 512 were skipped."""
    params, data = params_with(["resnet18"]), DataPaths(root=tmp_path)
    write_artifacts(
        data,
        params,
        lambda row: (
            {"status": "skipped", "reason": "too large", "steps": None}
            if row["batch_size"] == 512
            else default_outcome(row)
        ),
    )
    return load_inputs(params, data).studies[0]


def of(costs: list[ArmCost], arm: str) -> ArmCost:
    (found,) = (cost for cost in costs if cost.arm == arm)
    return found


def test_the_filtered_arm_alone_pays_for_the_choice_of_its_images(study: StudyInputs) -> None:
    costs = arm_costs([study], RECORDS)
    trained = 3 * 45 * (32 + 128)
    filtered, full, random = (of(costs, arm) for arm in ("filtered", "full", "random"))
    assert filtered.choosing == Cost(images=5320, seconds=33.0)
    assert filtered.training == Cost(images=trained, seconds=20.0)
    assert filtered.total == Cost(images=5320 + trained, seconds=53.0)
    assert filtered.choosing_in_runs == pytest.approx(5320 / (trained / 6))
    for cost in (full, random):
        assert cost.choosing == Cost(images=0, seconds=0.0)
        assert cost.total == cost.training
    assert (filtered.memory_mb, filtered.gpu_memory_mb, full.memory_mb, full.gpu_memory_mb) == (900, 70, 800, None)
    assert {cost.runs for cost in costs} == {6}


def test_every_draw_of_the_filter_is_paid_for(study: StudyInputs) -> None:
    drawn = replace(study, study=study.study.model_copy(update={"filter_draws": 2}))
    again = {name.replace("resnet18", "resnet18-r1"): record for name, record in RECORDS.items()}
    assert of(arm_costs([drawn], RECORDS | again), "filtered").choosing == Cost(images=2 * 5320, seconds=66.0)


def test_what_no_record_tells_is_unknown_and_not_nothing(study: StudyInputs) -> None:
    partial = {name: record for name, record in RECORDS.items() if name != "reduce@resnet18"}
    filtered = of(arm_costs([study], partial), "filtered")
    assert filtered.choosing == filtered.total == Cost(images=None, seconds=None)
    nothing = of(arm_costs([study], {}), "full")
    assert nothing.total == Cost(images=3 * 45 * (32 + 128), seconds=None)
    row = cost_table([filtered, nothing]).rows
    assert list(row[0][3:5]) == ["–", "–"]
    assert row[1][-2:] == ("–", "–")
