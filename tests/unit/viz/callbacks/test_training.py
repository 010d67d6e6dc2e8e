"""Pickers of the view Training, and messages about missing or inconsistent files."""

import json
from pathlib import Path
from typing import Any

import pytest
from dash import Dash, dcc

from pipeline.artifacts.files import write_json
from pipeline.config.batch_sizes import with_found_size
from pipeline.config.params import load_params
from pipeline.paths import DataPaths
from tests.fixtures.dash_components import all_of, text_of
from tests.fixtures.projects import write_params
from tests.fixtures.report import ROOT, params_tree, params_with, write_study
from viz.callbacks.training import batch_options, read_params, register, training_page
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


def _post(client: Any, output: str, **values: Any) -> Any:
    identifier, _, prop = output.partition(".")
    inputs = [{"id": key.replace("_", "-"), "property": "value", "value": value} for key, value in values.items()]
    outputs = {"id": identifier, "property": prop}
    body = {"output": output, "outputs": outputs, "inputs": inputs, "changedPropIds": ["study.value"]}
    return client.post("/_dash-update-component", json=body)


def test_parameters_damaged_while_the_page_is_open_are_named(data: DataPaths, tmp_path: Path) -> None:
    params_file = write_params(tmp_path)
    write_study(data, load_params(params_file), "digits")
    app = Dash("viz")
    app.layout = training_page(data, load_params(params_file))
    register(app, data, params_file)
    client = app.server.test_client()
    for damage in ("{", None):
        if damage is None:
            params_file.unlink()
        else:
            params_file.write_text(damage)
        answer = _post(client, "training.children", study="digits", study_batch=128)
        assert answer.status_code == 200
        assert "params.yaml" in answer.text


def test_a_study_with_a_size_that_was_found_matches_its_grid(data: DataPaths, tmp_path: Path) -> None:
    params_file = tmp_path / "params.yaml"
    params_file.write_text(json.dumps(params_tree(batch_sizes=[32, "largest"])))
    # The study is written with these parameters.
    write_json(data.provenance("train", "digits"), {"parameters": {"study": {"batch_sizes": [32, 512]}}})
    write_study(data, with_found_size(load_params(params_file), "digits", 512), "digits")
    app = Dash("viz")
    app.layout = training_page(data, read_params(params_file, data))
    register(app, data, params_file)
    answer = _post(app.server.test_client(), "training.children", study="digits", study_batch=512)
    assert answer.status_code == 200
    assert "study-accuracy" in answer.text
    assert "differ from the grid" not in answer.text
