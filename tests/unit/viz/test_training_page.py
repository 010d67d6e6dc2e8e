"""Pickers of the view Training, and messages about missing or inconsistent files."""

import json
from pathlib import Path
from typing import Any

import pytest
from dash import Dash, dcc

from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.dash_components import all_of, text_of
from tests.fixtures.report import ROOT, params_with, write_study
from viz.callbacks.training import batch_options, register, training_page
from viz.training import studies, study_view


@pytest.fixture
def data(tmp_path: Path) -> DataPaths:
    return DataPaths(root=tmp_path)


def test_only_studies_with_results_can_be_picked(data: DataPaths) -> None:
    params = params_with()
    assert studies(data, params) == []
    page = training_page(data, params)
    pickers = {picker.id: picker for picker in all_of(page, dcc.Dropdown)}
    assert (pickers["study"].options, pickers["study"].value) == ([], None)
    assert all_of(study_view(data, None, params=params, batch_size=None), dcc.Graph) == []
    write_study(data, params, "digits")
    (data.runs("digits").parent / "leftover.parquet").write_bytes(b"")
    assert studies(data, params) == ["digits"]


@pytest.mark.parametrize("name", ["leftover", "../prepare/train", ["digits"], 3])
def test_only_studies_of_the_parameters_are_read(data: DataPaths, name: Any) -> None:
    params = params_with()
    write_study(data, params, "digits")
    view: Any = study_view(data, name, params=params, batch_size=32)
    assert (view.className, all_of(view, dcc.Graph)) == ("problem", [])
    assert batch_options(data, params, name, None) == ([], None)


@pytest.mark.parametrize("file", ["runs", "history"])
@pytest.mark.parametrize("content", [None, b"PAR1 and no more"])
def test_files_missing_or_half_written_are_named(data: DataPaths, file: str, content: bytes | None) -> None:
    params = params_with()
    write_study(data, params, "digits")
    path: Path = getattr(data, file)("digits")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    view: Any = study_view(data, "digits", params=params, batch_size=32)
    assert (view.className, all_of(view, dcc.Graph)) == ("problem", [])
    assert f"{path}: " in text_of(view)
    assert batch_options(data, params, "digits", 32) == ([], None)


def test_tables_of_two_runs_of_a_study_are_not_mixed(data: DataPaths, tmp_path: Path) -> None:
    params, other = params_with(seeds=[0, 1]), DataPaths(root=tmp_path / "other")
    write_study(data, params_with(), "digits")
    write_study(other, params, "digits")
    other.runs("digits").replace(data.runs("digits"))
    view: Any = study_view(data, "digits", params=params, batch_size=32)
    assert view.className == "problem"
    assert f"{data.history('digits')}: " in text_of(view)


def test_the_chosen_batch_size_stays_if_the_next_study_has_it(data: DataPaths) -> None:
    params = params_with()
    write_study(data, params, "digits")
    options, first = batch_options(data, params, "digits", None)
    assert [option["value"] for option in options] == [32, 128, 512]
    assert [batch_options(data, params, "digits", chosen)[1] for chosen in (512, 33)] == [512, 32]
    assert first == 32


def test_the_server_answers_the_pickers(data: DataPaths) -> None:
    params_file = ROOT / "tests" / "params.yaml"
    params = load_params(params_file)
    write_study(data, params, "digits")
    app = Dash("viz")
    app.layout = training_page(data, params)
    register(app, data, params_file)
    client = app.server.test_client()
    inputs = [
        {"id": key, "property": "value", "value": value} for key, value in (("study", "digits"), ("study-batch", 128))
    ]
    answer = client.post(
        "/_dash-update-component",
        json={
            "output": "training.children",
            "outputs": {"id": "training", "property": "children"},
            "inputs": inputs,
            "changedPropIds": ["study-batch.value"],
        },
    )
    assert answer.status_code == 200
    shown = json.dumps(answer.json["response"]["training"]["children"])
    for graph in ("study-accuracy", "study-differences", "study-loss"):
        assert graph in shown
