"""benchmarks/plant_labels: a file that `prepare.labels` takes, with as many wrong labels as asked for."""

import sys
from pathlib import Path

import numpy as np
import pytest
from made_up_recursion import write_project
from made_up_training import run

from benchmarks.plant_labels import main
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.label_file import locate_labels, read_label_file
from pipeline.paths import DataPaths


@pytest.fixture
def prepared(tmp_path: Path) -> DataPaths:
    write_project(tmp_path)
    return DataPaths(root=tmp_path / "data")


def test_the_file_gives_the_stated_share_of_images_another_class(
    prepared: DataPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, manifest = tmp_path / "planted.csv", read_parquet(prepared.manifest("train"), ["path", "label"])
    main(["--data", str(prepared.root), "--rate", "0.25", "--out", str(file)])
    located = locate_labels(
        read_label_file(file, key="prepare.labels"),
        paths=manifest["path"].to_pylist(),
        class_names=read_json(prepared.prepare_metrics)["class_names"],
        test_paths=set(read_parquet(prepared.manifest("test"))["path"].to_pylist()),
    )
    truth = manifest["label"].to_numpy()
    given = np.array([located[row] for row in range(len(truth))])
    wrong = round(0.25 * len(truth))
    assert (given != truth).sum() == wrong > 0
    assert capsys.readouterr().out == f"{file}: {wrong:,} of {len(truth):,} labels are wrong\n"


def test_labels_that_a_file_has_changed_are_not_taken_for_the_truth(prepared: DataPaths, tmp_path: Path) -> None:
    write_json(prepared.prepare_metrics, {**read_json(prepared.prepare_metrics), "n_relabelled": 3})
    file = tmp_path / "planted.csv"
    done = run([sys.executable, "-m", "benchmarks.plant_labels", "--data", str(prepared.root), "--out", str(file)])
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {prepared.prepare_metrics}: a file has changed the labels; "
        "remove prepare.labels and run `dvc repro prepare`\n"
    )
    assert not file.exists()
