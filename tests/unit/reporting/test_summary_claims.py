"""The report's section on the paper's claims."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from pipeline.artifacts.runs import read_run_records
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.config.params import Params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.replication import CLAIMS
from pipeline.replication.compare_published import claim_table, slope_table
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import build_summary
from tests.fixtures.report import params_with, write_artifacts
from tests.unit.reporting.test_render_document import render as render_document
from tests.unit.reporting.test_render_page import render as render_page

SEEDS = tuple(range(6))
SIZES = (32, 64, 128, 256, 512)


def _noisier(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spread between seeds is that of the batch size; filtered images are better."""
    top1 = 0.5 + 0.1 * (row["arm"] == "filtered") + (row["seed"] - 2.5) * row["batch_size"] / 5e3
    return {"top1": top1, "balanced_accuracy": 0.9}


@pytest.fixture
def project(tmp_path: Path) -> tuple[Params, DataPaths]:
    params, data = params_with(["resnet18"], seeds=SEEDS, match="epochs", batch_sizes=SIZES), DataPaths(root=tmp_path)
    write_artifacts(data, params, _noisier)
    return params, data


def test_what_can_be_tested_is_and_the_rest_says_what_it_needs(project: tuple[Params, DataPaths]) -> None:
    params, data = project
    sentences = build_summary(load_report_inputs(params, data))["sentences"]
    json.dumps(sentences, allow_nan=False)
    outcomes = {row["name"]: row["outcome"] for row in sentences}
    assert list(outcomes) == list(CLAIMS)
    assert outcomes["variance"] == outcomes["as_good_as_full"] == "supported"
    assert outcomes["best_extractor"] == outcomes["best_batch"] == "not testable here"
    table = {row[0]: row for row in claim_table(sentences).rows}
    extractor = table[CLAIMS["best_extractor"].meaning]
    assert extractor[3:] == ("–", CLAIMS["best_extractor"].needs)


def _growing(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Filtering gains one image of 40 with each doubling of the batch size."""
    gain = np.log2(row["batch_size"] / 32) / 40 if row["arm"] == "filtered" else 0.0
    return {"top1": 0.5 + gain + (row["seed"] % 2) / 40 * (row["arm"] == "full"), "balanced_accuracy": 0.9}


def test_the_growth_of_the_gain_is_a_table_and_a_sentence(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], seeds=SEEDS, batch_sizes=SIZES), DataPaths(root=tmp_path)
    write_artifacts(data, params, _growing)
    summary = build_summary(load_report_inputs(params, data))
    (study,) = summary["studies"]
    controls = {row["control"]: row["evidence"] for row in study["batch_slopes"]}
    assert controls["full"]["mean"] == controls["random"]["mean"] == pytest.approx(2.5)
    rows = slope_table(study).rows
    assert [row[:2] for row in rows] == [("filtered − full", "+2.50"), ("filtered − random", "+2.50")]
    assert rows[0][5:] == ("32, 64, 128, 256, 512", "6 seeds")
    (headline,) = (row for row in summary["sentences"] if row["name"] == "gain_by_batch")
    assert headline["outcome"] == "supported"
    header = slope_table(study).columns[1]
    for text in (render_page(params, data), render_document(params, data)[0]):
        assert header in text


def test_a_run_that_diverged_takes_its_size_from_the_slope(tmp_path: Path) -> None:
    """Leaving out its seed would keep the runs that went well."""

    def one_diverged(row: Mapping[str, Any]) -> Mapping[str, Any]:
        if (row["arm"], row["seed"], row["batch_size"]) == ("random", 3, 512):
            return {"status": "diverged", "top1": None, "balanced_accuracy": None}
        return _growing(row)

    params, data = params_with(["resnet18"], seeds=SEEDS, batch_sizes=SIZES), DataPaths(root=tmp_path)
    write_artifacts(data, params, one_diverged)
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    evidence = {row["control"]: row["evidence"] for row in study["batch_slopes"]}
    assert (evidence["full"]["batch_sizes"], evidence["full"]["n"]) == (SIZES, 6)
    assert (evidence["random"]["batch_sizes"], evidence["random"]["n"]) == (SIZES[:-1], 6)


def test_claims_and_slopes_use_the_seeds_and_the_level_of_a_look(tmp_path: Path) -> None:
    options: dict[str, Any] = {"seeds": tuple(range(8)), "batch_sizes": SIZES, "looks": (4, 6, 8)}
    params, data = params_with(["resnet18"], **options), DataPaths(root=tmp_path)
    write_artifacts(data, params, lambda row: {**_growing(row), "top1": 0.5 + 0.2 * (row["arm"] == "filtered")})
    inputs = load_report_inputs(params, data)
    # The gain is clear at the first look.
    assert {record.seed for record in inputs.studies[0].records} == set(range(4))
    summary = build_summary(inputs)
    (study,) = summary["studies"]
    for row in (*study["batch_slopes"], *summary["sentences"]):
        assert row["confidence"] == pytest.approx(1 - 0.05 / 3)
    assert {row["evidence"]["n"] for row in study["batch_slopes"]} == {4}


def test_settings_that_cannot_be_read_are_one_line(project: tuple[Params, DataPaths]) -> None:
    _, data = project
    path = data.runs("digits")
    rows = read_parquet(path)
    assert {row["extractor"] for row in read_run_records(path, "array")} == {"resnet18"}
    write_parquet(path, rows.set_column(rows.column_names.index("settings"), "settings", [["{}"] * len(rows)]))
    with pytest.raises(InputError) as refused:
        read_run_records(path, "array")
    assert refused.value.key == str(path)


@pytest.mark.parametrize(
    ("storage", "settings", "augmented"),
    [
        ("array", {"crop_size": 28}, True),  # of 32 pixels: one of 25 places
        ("array", {"crop_size": 32}, False),
        ("array", {"crop_size": 32, "crop_padding": 4}, True),
        ("array", {"crop_size": 32, "flip": True}, True),
        ("files", {"crop_size": 32}, True),  # crops of large images
    ],
)
def test_images_are_augmented_where_what_is_seen_of_them_is_drawn(
    project: tuple[Params, DataPaths], storage: Literal["array", "files"], settings: dict[str, Any], *, augmented: bool
) -> None:
    _, data = project
    path = data.runs("digits")
    rows = read_parquet(path)
    seen = {"image_size": 32, "crop_size": settings["crop_size"]}
    text = json.dumps({"crop_padding": 0, "flip": False, **settings, "format": seen})
    write_parquet(path, rows.set_column(rows.column_names.index("settings"), "settings", [[text] * len(rows)]))
    assert {row["augmented"] for row in read_run_records(path, storage)} == {augmented}
    assert len({row["recipe"] for row in read_run_records(path, storage)}) == 1


def test_a_run_that_diverged_counts_with_its_seed_alone(tmp_path: Path) -> None:
    """After a study has stopped by its plan, runs of later seeds are in no slope and no claim."""

    def outcome(row: Mapping[str, Any]) -> Mapping[str, Any]:
        if row["seed"] == SEEDS[-1] and row["batch_size"] == SIZES[0]:
            return {"status": "diverged", "reason": "the training loss stopped being finite"}
        return _noisier(row)

    params, data = params_with(["resnet18"], seeds=SEEDS, match="epochs", batch_sizes=SIZES), DataPaths(root=tmp_path)
    write_artifacts(data, params, outcome)
    path = data.runs("digits")
    assert {row["batch_size"] for row in read_run_records(path, "array") if row["setting_diverged"]} == {SIZES[0]}
    earlier = read_run_records(path, "array", SEEDS[:-1])
    assert {row["seed"] for row in earlier} == set(SEEDS[:-1])
    assert not any(row["setting_diverged"] for row in earlier)
