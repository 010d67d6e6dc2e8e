from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.energy import UNKNOWN_ENERGY, Energy
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import StudyInputs, load_report_inputs
from pipeline.reporting.render import render_costs
from pipeline.reporting.tables import ArmCost, RunCost, arm_costs, cost_table, resource_table
from tests.fixtures.golden import check_golden
from tests.fixtures.report import default_outcome, params_with, write_artifacts
from tests.unit.reporting.test_render_golden import Prose

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
    return load_report_inputs(params, data).studies[0]


def of(costs: list[ArmCost], arm: str) -> ArmCost:
    (found,) = (cost for cost in costs if cost.arm == arm)
    return found


def test_the_filtered_arm_alone_pays_for_the_choice_of_its_images(study: StudyInputs) -> None:
    costs = arm_costs([study], RECORDS)
    trained = 3 * 45 * (32 + 128)
    filtered, full, random = (of(costs, arm) for arm in ("filtered", "full", "random"))
    assert filtered.choosing == RunCost(images=5320, seconds=33.0)
    assert filtered.training == RunCost(images=trained, seconds=20.0)
    assert filtered.total == RunCost(images=5320 + trained, seconds=53.0)
    assert filtered.choosing_in_runs == pytest.approx(5320 / (trained / 6))
    for cost in (full, random):
        assert cost.choosing == RunCost(images=0, seconds=0.0, joules=Energy(gpu=0.0, cpu=0.0, memory=0.0))
        assert cost.total == cost.training
    assert (filtered.memory_mb, filtered.gpu_memory_mb, full.memory_mb, full.gpu_memory_mb) == (900, 70, 800, None)
    assert {cost.runs for cost in costs} == {6}


def test_every_draw_of_the_filter_is_paid_for(study: StudyInputs) -> None:
    drawn = replace(study, study=study.study.model_copy(update={"filter_replicates": 2}))
    again = {name.replace("resnet18", "resnet18-r1"): record for name, record in RECORDS.items()}
    assert of(arm_costs([drawn], RECORDS | again), "filtered").choosing == RunCost(images=2 * 5320, seconds=66.0)


def test_what_no_record_tells_is_unknown_and_not_nothing(study: StudyInputs) -> None:
    partial = {name: record for name, record in RECORDS.items() if name != "reduce@resnet18"}
    filtered = of(arm_costs([study], partial), "filtered")
    assert filtered.choosing == filtered.total == RunCost(images=None, seconds=None)
    nothing = of(arm_costs([study], {}), "full")
    assert nothing.total == RunCost(images=3 * 45 * (32 + 128), seconds=None)
    row = cost_table([filtered, nothing]).rows
    assert list(row[0][3:5]) == ["–", "–"]
    assert row[1][-2:] == ("–", "–")


def _with_energy(trained: Mapping[str, Energy], **stages: Energy) -> dict[str, dict[str, Any]]:
    """RECORDS with what the stages of resnet18 and the runs of each arm drew."""
    told = {f"{stage}@resnet18": {"joules": vars(drawn)} for stage, drawn in stages.items()}
    told["train@digits"] = {
        "joules": vars(UNKNOWN_ENERGY),
        "arms_joules": {arm: vars(drawn) for arm, drawn in trained.items()},
    }
    return {name: record | told.get(name, {}) for name, record in RECORDS.items()}


# Nobody may read the processors' counters where the map is made, which uses no GPU.
NO_GPU = Energy(gpu=0.0)
SOME_TELL = _with_energy(
    {"full": Energy(gpu=5000.0, cpu=900.0), "filtered": Energy(gpu=4000.0, cpu=800.0), "random": UNKNOWN_ENERGY},
    finetune=Energy(gpu=6000.0, cpu=700.0),
    extract=Energy(gpu=123.4, cpu=10.0),
    reduce=NO_GPU,
    filter=NO_GPU,
)


def test_energy_of_a_kind_is_summed_only_if_all_parts_have_it(study: StudyInputs) -> None:
    costs = arm_costs([study], SOME_TELL)
    filtered, full, random = (of(costs, arm) for arm in ("filtered", "full", "random"))
    assert filtered.choosing.joules == Energy(gpu=6123.4, cpu=None, memory=None)
    assert filtered.total.joules == Energy(gpu=10123.4, cpu=None, memory=None)
    assert full.total.joules == full.training.joules == Energy(gpu=5000.0, cpu=900.0, memory=None)
    assert random.total.joules == UNKNOWN_ENERGY


def test_each_known_kind_of_energy_has_columns(study: StudyInputs) -> None:
    table = cost_table(arm_costs([study], SOME_TELL))
    columns = {header: [row[i] for row in table.rows] for i, header in enumerate(table.columns) if "energy" in header}
    assert [row[1] for row in table.rows] == ["full", "filtered", "random"]
    assert columns == {
        "choosing: GPU energy (kJ)": ["0", "6.12", "0"],
        "choosing: CPU energy (kJ)": ["0", "–", "0"],
        "training: GPU energy (kJ)": ["5", "4", "–"],
        "training: CPU energy (kJ)": ["0.9", "0.8", "–"],
        "total: GPU energy (kJ)": ["5", "10.1", "–"],
        "total: CPU energy (kJ)": ["0.9", "–", "–"],
    }


def test_the_page_shows_both_tables_and_needs_nothing_else(study: StudyInputs) -> None:
    page = render_costs("<digits>", SOME_TELL, arm_costs([study], SOME_TELL))
    assert "&lt;digits&gt;" in page
    for table in (cost_table(arm_costs([study], SOME_TELL)), resource_table(SOME_TELL)):
        for cells in table.rows:
            assert all(f">{cell}</td>" in page for cell in cells)
    assert "src=" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_pages_prose(study: StudyInputs) -> None:
    for name, records in (("costs_page.txt", SOME_TELL), ("costs_page_without_records.txt", {})):
        check_golden(name, Prose(render_costs("<digits>", records, arm_costs([study], records))).text)


def test_energy_of_stages_is_shown_in_joules_while_they_are_few() -> None:
    small = {name: record for name, record in SOME_TELL.items() if name in ("prepare", "extract@resnet18")}
    table = resource_table(small)
    assert list(table.columns[1:4]) == ["time (s)", "GPU energy (J)", "CPU energy (J)"]
    assert [tuple(row[:4]) for row in table.rows] == [
        ("prepare", "1,000.0", "–", "–"),
        ("extract@resnet18", "3.0", "123", "10"),
    ]


@pytest.mark.parametrize("records", [RECORDS, _with_energy({"full": UNKNOWN_ENERGY}, reduce=NO_GPU)])
def test_without_energy_there_is_no_column(study: StudyInputs, records: dict[str, dict[str, Any]]) -> None:
    for table in (cost_table(arm_costs([study], records)), resource_table(records)):
        assert not [header for header in table.columns if "energy" in header]
        assert {len(row) for row in table.rows} == {len(table.columns)}
