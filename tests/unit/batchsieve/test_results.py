"""`open_results`: networks, filters and studies as notebooks read them."""

import doctest
import importlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from batchsieve import InputError, NetworkResults, Results, StudyResults, open_results
from batchsieve.figures import training_loss
from batchsieve.study_results import read_study
from pipeline.arms import arm_mask
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.summary import build_summary
from pipeline.stats.study import study_summary
from tests.fixtures.damages import damage
from tests.fixtures.report import CLASS_NAMES, params_tree, params_with, write_artifacts


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("project")
    YAML().dump(params_tree(), folder / "params.yaml")
    opened = open_results(folder)
    write_artifacts(opened.data, params_with())
    return opened


@pytest.fixture(scope="module")
def network(results: Results) -> NetworkResults:
    return results.network()


@pytest.fixture(scope="module")
def study(results: Results) -> StudyResults:
    return results.study()


def test_the_project_is_the_nearest_one_above(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    below = results.data.root / "deep"
    below.mkdir()
    monkeypatch.chdir(below)
    assert open_results().data == results.data
    assert (results.networks, results.studies) == (("resnet18", "resnet34"), ("digits",))
    assert tuple(results.prepared.class_names) == tuple(CLASS_NAMES)
    assert results.planted_note is None


def test_a_network_has_the_table_of_its_filter(results: Results, network: NetworkResults) -> None:
    table = read_parquet(results.data.points("resnet18"))
    np.testing.assert_array_equal(network.keep, table["keep"].to_numpy())
    np.testing.assert_array_equal(network.coordinates[:, 1], table["y"].to_numpy())
    np.testing.assert_array_equal(network.neighbors, np.array(table["neighbours"].to_pylist()))
    assert len(network.test_coordinates) == len(results.prepared.test.labels)
    assert network.filter == read_json(results.data.filter_metrics("resnet18"))
    dropped = network.dropped()
    assert set(dropped) == set(np.flatnonzero(~network.keep))
    assert (np.diff(network.score[dropped]) <= 0).all()
    assert network.to_pandas()["score"].is_monotonic_decreasing
    expected = arm_mask("random", network.labels, network.keep, seed=3)
    np.testing.assert_array_equal(network.random_keep(3), expected)
    assert repr(network) == f"NetworkResults(resnet18: 6 of {len(network)} images dropped)"


def test_a_study_is_that_of_the_report(results: Results, study: StudyResults) -> None:
    (reported,) = load_report_inputs(results.params, results.data).studies
    assert study.plan == reported.plan
    assert study.summary == study_summary("digits", reported.runs, reported.plan)
    assert repr(study) == f"StudyResults(digits: {len(study.runs)} of {len(study.runs)} runs finished)"


def test_curves_have_the_axis_of_the_study(results: Results) -> None:
    params = params_with(x_axis="steps")
    (reported,) = build_summary(load_report_inputs(params, results.data))["studies"]
    study = read_study("digits", params, results.data)
    assert study.summary["learning"] == reported["learning"]
    assert training_loss(study).content != training_loss(results.study()).content


def test_verdicts_are_those_of_the_summary(study: StudyResults) -> None:
    verdicts = study.verdicts()
    assert [verdict.is_primary for verdict in verdicts].count(True) == 1
    for verdict, row in zip(verdicts, study.summary["pooled"], strict=True):
        assert (verdict.control, verdict.sentence) == (row["control"], row["sentence"])
        assert verdict.outcome == (row["verdict"] and row["verdict"]["outcome"])


def test_tables_have_a_row_for_each_setting_and_class(study: StudyResults) -> None:
    assert len(study.accuracy_table()) == len(study.summary["accuracy"])
    assert len(study.difference_table()) == len(study.summary["differences"])
    assert study.critical_batch_table().empty
    by_class = study.class_table()
    assert by_class["class"].tolist() == [*CLASS_NAMES, "worst class"] == study.class_rows
    assert len(by_class.columns) == 1 + len(study.class_differences)


def test_other_names(results: Results) -> None:
    with pytest.raises(InputError, match=r"^network: vgg is not in params.yaml; give one of resnet18, resnet34$"):
        results.network("vgg")
    with pytest.raises(InputError, match=r"^study: mnist is not in params.yaml; give one of digits$"):
        results.study("mnist")


def test_missing_files_are_named_when_they_are_read(tmp_path: Path) -> None:
    YAML().dump(params_tree(), tmp_path / "params.yaml")
    results = open_results(tmp_path)
    for read in (results.network, results.study, lambda: results.prepared, lambda: results.costs):
        with pytest.raises(InputError, match="missing"):
            read()
    with pytest.raises(InputError, match="no such file"):
        open_results(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("filter/resnet18/points.parquet", Results.network),
        ("reduce/resnet18.test.parquet", Results.network),
        ("train/digits.history.parquet", Results.study),
        ("train/digits.correct.npy", Results.study),
        ("prepare/test.parquet", Results.study),
    ],
)
def test_files_that_their_stage_did_not_write_are_refused(
    name: str, read: Callable[[Results], object], results: Results
) -> None:
    path = results.data.root / name
    whole = path.read_bytes()
    try:
        assert damage(path, "a value changed")
        with pytest.raises(InputError) as raised:
            read(results)
    finally:
        path.write_bytes(whole)
    assert raised.value.key == str(path)


def test_files_without_a_record_are_noted_once(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A folder of an earlier test may have had the same path.
    monkeypatch.setattr("pipeline.artifacts.recorded._noted", set())
    shutil.copytree(results.data.root, tmp_path / "data")
    shutil.copy(results.data.root.parent / "params.yaml", tmp_path)
    copy = open_results(tmp_path)
    copy.data.provenance("filter", "resnet18").unlink()
    copy.data.provenance("train", "digits").unlink()
    capsys.readouterr()
    for _ in range(2):
        copy.network("resnet34")
        copy.network("resnet18")
        copy.study("digits")
    assert capsys.readouterr().err.splitlines() == [
        f"{copy.data.root}: no provenance.json of {stage}: their files were not checked"
        for stage in ("filter@resnet18", "train@digits")
    ]


def test_costs_are_those_of_the_stages(results: Results) -> None:
    write_json(results.data.resources, {"prepare": {"wall_s": 1.5}})
    assert results.costs["prepare"]["wall_s"] == 1.5


@pytest.mark.parametrize("stage", ["finetune", "reduce", "filter"])
@pytest.mark.parametrize("text", ["[]", "null", '["top1"]', "{}"])
def test_damaged_metrics_without_a_record_are_refused(stage: str, text: str, results: Results, tmp_path: Path) -> None:
    shutil.copytree(results.data.root, tmp_path / "data")
    data = DataPaths(root=tmp_path / "data")
    data.provenance(stage, "resnet18").unlink()
    path = getattr(data, f"{stage}_metrics")("resnet18")
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        Results(params=results.params, data=data).network("resnet18")
    assert raised.value.key == str(path)


@pytest.mark.parametrize("text", ["[]", "null", '{"prepare": 3}', '{"prepare": {"wall_s": 1.0, "joules": 3}}'])
def test_damaged_costs_are_refused(results: Results, text: str, tmp_path: Path) -> None:
    data = DataPaths(root=tmp_path)
    data.resources.parent.mkdir(parents=True)
    data.resources.write_text(text)
    with pytest.raises(InputError) as raised:
        Results(params=results.params, data=data).costs  # noqa: B018 - it reads the file
    assert raised.value.key == str(data.resources)


def test_the_example_runs(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results.data.root.parent)
    found = doctest.testmod(importlib.import_module("batchsieve.results"), optionflags=doctest.ELLIPSIS)
    assert (found.attempted > 0, found.failed) == (True, 0)
