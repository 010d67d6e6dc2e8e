"""The report's section on the loss around the final weights."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.landscape.study import SCHEMA
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.landscape import load_landscapes, outdated_landscapes
from pipeline.reporting.render import render_document, render_page
from pipeline.reporting.summary import build_summary
from tests.fixtures.report import figures_without_pictures, params_with, write_artifacts

SEEDS = tuple(range(8))

Rows = list[dict[str, Any]]


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


def _write(folder: Path, change: Callable[[Rows], Rows] = lambda rows: rows, seeds: tuple[int, ...] = SEEDS) -> None:
    params, data = params_with(["resnet18"], seeds=seeds), DataPaths(root=folder)
    write_artifacts(data, params)
    rows = [_row(run, split) for run in read_parquet(data.runs("digits")).to_pylist() for split in ("train", "test")]
    write_parquet(data.landscape("digits"), pa.Table.from_pylist(change(rows), schema=SCHEMA))
    data.landscape_figure("digits").write_text("<svg/>")


def _document(folder: Path, seeds: tuple[int, ...] = SEEDS) -> str:
    params, data = params_with(["resnet18"], seeds=seeds), DataPaths(root=folder)
    inputs = load_report_inputs(params, data)
    return render_document(params, build_summary(inputs), [], load_landscapes(inputs.studies, data))


def _page(folder: Path) -> str:
    params, data = params_with(["resnet18"], seeds=SEEDS), DataPaths(root=folder)
    inputs = load_report_inputs(params, data)
    figures = figures_without_pictures({"digits": {}}, ["resnet18"])
    return render_page(params, build_summary(inputs), figures, load_landscapes(inputs.studies, data))


def _not_converged(rows: Rows) -> Rows:
    """The first network, by neither split."""
    return [{**row, "converged": False, "top_eigenvalue": None} if at < 2 else row for at, row in enumerate(rows)]


def _of_an_earlier_run(rows: Rows) -> Rows:
    return [{**rows[0], "fingerprint": "of an earlier run"}, *rows[1:]]


def _found(folder: Path, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    """What was measured of the study."""
    params, data = params_with(["resnet18"], seeds=seeds), DataPaths(root=folder)
    return dict(load_landscapes(load_report_inputs(params, data).studies, data)["digits"])


def _ratios(folder: Path, split: str, seeds: tuple[int, ...] = SEEDS) -> dict[tuple[str, str], dict[str, Any]]:
    """By measure and control."""
    ratios = _found(folder, seeds)["splits"][split]["ratios"]
    return {(name, ratio["control"]): ratio for name, of_name in ratios.items() for ratio in of_name}


@pytest.mark.slow
def test_a_smoother_arm_is_said_to_be(tmp_path: Path) -> None:
    _write(tmp_path)
    for split, outcome, mean in (("train", "lower", 0.5), ("test", "undecided", 1.0)):
        ratios = _ratios(tmp_path, split)
        assert set(ratios) == {(name, control) for name in ("eigenvalue", "rise") for control in ("full", "random")}
        for ratio in ratios.values():
            assert (ratio["outcome"], ratio["mean"]) == (outcome, pytest.approx(mean))
            assert (ratio["n"], ratio["unit"], len(ratio["settings"]), ratio["draws"]) == (8, "seed", 3, 1)
    assert "../landscape/digits.svg" in _document(tmp_path)


def test_a_setting_without_all_its_networks_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path, lambda rows: rows[1:])
    left_out = {key: ratio["left_out"] for key, ratio in _ratios(tmp_path, "train").items()}
    assert left_out == {
        ("eigenvalue", "full"): 1,
        ("eigenvalue", "random"): 0,
        ("rise", "full"): 1,
        ("rise", "random"): 0,
    }


@pytest.mark.slow
def test_a_network_that_converges_by_no_split_is_one(tmp_path: Path) -> None:
    _write(tmp_path, _not_converged)
    assert _found(tmp_path)["n_not_converged"] == 1
    for split in ("train", "test"):
        left_out = {key for key, ratio in _ratios(tmp_path, split).items() if ratio["left_out"]}
        assert left_out == {("eigenvalue", "full")}


@pytest.mark.slow
def test_page_draws_slices_of_the_numbers_in_its_table(tmp_path: Path) -> None:
    _write(tmp_path)
    before = _slices(_page(tmp_path))
    data = DataPaths(root=tmp_path)
    data.landscape_figure("digits").unlink()
    assert _slices(_page(tmp_path)) == before
    rows = read_parquet(data.landscape("digits")).to_pylist()
    changed = [{**row, "slices": [[2 * loss for loss in one] for one in row["slices"]]} for row in rows]
    write_parquet(data.landscape("digits"), pa.Table.from_pylist(changed, schema=SCHEMA))
    assert _slices(_page(tmp_path)) != before


def test_a_document_without_its_figure_names_its_command(tmp_path: Path) -> None:
    _write(tmp_path)
    DataPaths(root=tmp_path).landscape_figure("digits").unlink()
    said = _document(tmp_path)
    assert "digits.svg" not in said
    assert ("landscape", "--study", "digits") in _commands(said)


@pytest.mark.parametrize("there", [True, False])
def test_without_measurements_of_these_runs_nothing_is_shown(tmp_path: Path, *, there: bool) -> None:
    _write(tmp_path, _of_an_earlier_run)
    if not there:
        DataPaths(root=tmp_path).landscape("digits").unlink()
    params, data = params_with(["resnet18"], seeds=SEEDS), DataPaths(root=tmp_path)
    studies = load_report_inputs(params, data).studies
    assert load_landscapes(studies, data) == {}
    assert "Loss landscape" not in _document(tmp_path)
    # Measurements that are left out are named in the log.
    lines = outdated_landscapes({}, studies, data)
    assert [_commands(line) for line in lines] == [[("landscape", "--study", "digits")]] * there
    assert outdated_landscapes({"digits": {}}, studies, data) == []


def test_too_few_networks_claim_nothing(tmp_path: Path) -> None:
    _write(tmp_path, seeds=SEEDS[:5])
    ratios = _ratios(tmp_path, "train", SEEDS[:5])
    assert {(ratio["outcome"], ratio["least_p"]) for ratio in ratios.values()} == {("undecided", 0.0625)}


@pytest.mark.slow
def test_no_picture_is_wider_than_a_phone_or_a_sheet(tmp_path: Path) -> None:
    _write(tmp_path)
    assert "section img { max-width: 100%; }" in _page(tmp_path)


def _commands(text: str) -> list[tuple[str, ...]]:
    """The commands of `python -m pipeline` in a document, each as its words."""
    return [tuple(words.split()) for words in re.findall(r"`python -m pipeline ([^`]+)`", text)]


def _slices(page: str) -> str:
    """The picture's data URI."""
    (found,) = re.findall(r'<img src="(data:image/svg[^"]+)"', page)
    return str(found)
