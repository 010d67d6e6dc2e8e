"""The filter and the report state that labels were changed on purpose."""

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from pipeline.artifacts.files import read_json
from pipeline.artifacts.overrides import COLUMNS
from pipeline.artifacts.tables import read_parquet, write_csv
from pipeline.filtering.tables import kept_and_dropped
from pipeline.paths import DataPaths
from pipeline.stages.filter import filter_images
from pipeline.stages.harness import run_stage
from pipeline.stages.report import report
from tests.fixtures.planted import say_planted
from tests.fixtures.projects import (
    NETWORK,
    class_blobs,
    stage_arguments,
    write_embedding,
    write_manifest,
    write_params,
    write_predictions,
)
from tests.fixtures.report import params_tree, params_with, write_artifacts


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataPaths:
    """All artifacts before the report; the filter drops the last six images, two of them with a wrong label."""
    YAML().dump(params_tree(["resnet18"]), tmp_path / "params.yaml")
    data = DataPaths(root=tmp_path / "data")
    write_artifacts(data, params_with(["resnet18"]))
    say_planted(data, {3: 0, 78: 1, 79: 2})
    monkeypatch.chdir(tmp_path)
    return data


def test_each_row_of_both_tables_has_the_number_of_changed_labels(data: DataPaths) -> None:
    points = read_parquet(data.points("resnet18"))
    for table, file in zip(kept_and_dropped(points, 3), ("kept.csv", "dropped.csv"), strict=True):
        write_csv(data.root / file, table)
        assert set(pd.read_csv(data.root / file)["labels_changed_on_purpose"]) == {3}
        with (data.root / file).open(newline="") as lines:
            assert {row["labels_changed_on_purpose"] for row in csv.DictReader(lines)} == {"3"}


def test_the_filter_states_the_number_of_changed_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DataPaths(root=tmp_path / "data")
    xy, labels = class_blobs(np.random.default_rng(0), n_classes=2, per_class=40, dimensions=2)
    write_manifest(data, "train", labels)
    write_predictions(data, labels)
    write_embedding(data, xy)
    say_planted(data, {row: 1 - int(labels[row]) for row in (0, 50)})
    data.overrides.write_text(",".join(COLUMNS) + "\n")
    write_params(tmp_path, filter={"drop_fraction": 0.05})
    run_stage("filter", filter_images, item="network", argv=stage_arguments(tmp_path))
    for file in (data.kept(NETWORK), data.dropped(NETWORK)):
        assert set(pd.read_csv(file)["labels_changed_on_purpose"]) == {2}
    assert "labels changed on purpose: 2" in capsys.readouterr().err


def test_without_planted_labels_the_tables_have_no_extra_column(data: DataPaths) -> None:
    kept, dropped = kept_and_dropped(read_parquet(data.points("resnet18")))
    suggestion = ("suggested_label_name", "suggested_probability")
    assert kept.column_names == ["sample_id", "path", "label_name"]
    assert dropped.column_names == ["sample_id", "path", "label_name", "score", "reason", *suggestion]


@pytest.mark.slow
def test_all_outputs_state_the_number_of_changed_labels(data: DataPaths, capsys: pytest.CaptureFixture[str]) -> None:
    run_stage("report", report, argv=[])
    headline = "Labels changed on purpose: 3 of 80 training labels"
    result = "2 of the 3 wrong labels found"
    printed = capsys.readouterr().err
    for text in (data.report_page.read_text(), data.report_document.read_text(), printed):
        assert headline in text
        assert result in text.replace("\\", "")
    assert read_json(data.summary)["wrong_labels_found"] == {"resnet18": pytest.approx(2 / 3)}
