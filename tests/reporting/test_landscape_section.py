"""What the report says of the loss around the final weights."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from made_up_report import params_with, write_artifacts

from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.landscape.study import SCHEMA
from pipeline.paths import DataPaths
from pipeline.reporting.document import render_document
from pipeline.reporting.inputs import load_inputs
from pipeline.reporting.landscape import load_landscapes
from pipeline.reporting.summary import build_summary

SEEDS = tuple(range(8))


def _row(run: dict[str, Any], split: str) -> dict[str, Any]:
    """Filtered networks are twice as smooth on training images, and no smoother on test images."""
    smooth = 0.5 if run["arm"] == "filtered" and split == "train" else 1.0
    value = smooth * (10 + run["seed"] + run["batch_size"] / 100)
    of_run = {name: run.get(name, "digits") for name in SCHEMA.names if name in run or name == "study"}
    return of_run | {
        "weights_sha256": "", "split": split, "n_images": 50, "measuring_seed": 0, "loss": 0.1, "top_eigenvalue": value,
        "residual": 0.0, "products": 9, "converged": True, "rise": value / 7, "distances": [-1.0, 0.0, 1.0],
        "slices": [[0.1 + value, 0.1, 0.1 + value]],
    }  # fmt: skip


def _document(folder: Path, *, stale: bool = False, lacking: int = 0, seeds: tuple[int, ...] = SEEDS) -> str:
    params, data = params_with(["resnet18"], seeds=seeds), DataPaths(root=folder)
    write_artifacts(data, params)
    rows = [_row(run, split) for run in read_parquet(data.runs("digits")).to_pylist() for split in ("train", "test")]
    if stale:
        rows[0]["fingerprint"] = "of an earlier run"
    write_parquet(data.landscape("digits"), pa.Table.from_pylist(rows[lacking:], schema=SCHEMA))
    data.landscape_figure("digits").write_text("<svg/>")
    inputs = load_inputs(params, data)
    return render_document(params, build_summary(inputs), [], {}, [], load_landscapes(inputs.studies, data))


def test_a_smoother_arm_is_said_to_be(tmp_path: Path) -> None:
    said = _document(tmp_path)
    for control in ("full", "random"):
        for what in ("in the largest eigenvalue of the Hessian", "in the mean rise of the loss on slices"):
            assert f"filtered against {control} {what}, training images: smoother (0.50 times as large" in said
            assert f"filtered against {control} {what}, test images: undecided (1.00 times as large" in said
    assert "../landscape/digits.svg" in said


def test_a_setting_without_all_its_networks_is_left_out(tmp_path: Path) -> None:
    assert "1 setting left out" in _document(tmp_path, lacking=1)


@pytest.mark.parametrize("there", [True, False])
def test_without_measurements_of_these_runs_it_says_what_to_run(tmp_path: Path, *, there: bool) -> None:
    said = _document(tmp_path, stale=True)
    if not there:
        params, data = params_with(["resnet18"], seeds=SEEDS), DataPaths(root=tmp_path)
        data.landscape("digits").unlink()
        inputs = load_inputs(params, data)
        said = render_document(params, build_summary(inputs), [], {}, [], load_landscapes(inputs.studies, data))
    assert "python -m pipeline landscape --study digits" in said
    assert "smoother" not in said


def test_too_few_networks_to_claim_anything_are_said_to_be(tmp_path: Path) -> None:
    assert "too few to claim" not in _document(tmp_path / "eight")
    said = _document(tmp_path / "five", seeds=SEEDS[:5])
    assert "too few to claim a difference: the sign-flip test gives 0.0625 at best" in said
