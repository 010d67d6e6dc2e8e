"""benchmarks/plant_labels: a file that `prepare.labels` takes, with as many wrong labels as asked for."""

from pathlib import Path

import numpy as np
import pytest
from made_up_recursion import write_project

from benchmarks.plant_labels import main
from pipeline.artifacts.prepared import load_prepared
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.label_file import locate_labels, read_label_file
from pipeline.paths import DataPaths


def test_the_file_gives_the_stated_share_of_images_another_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path)
    paths, file = DataPaths(root=tmp_path / "data"), tmp_path / "planted.csv"
    main(["--data", str(paths.root), "--rate", "0.25", "--out", str(file)])
    data = load_prepared(paths, folder=None)
    located = locate_labels(
        read_label_file(file, key="prepare.labels"),
        paths=read_parquet(paths.manifest("train"))["path"].to_pylist(),
        class_names=data.class_names,
        test_paths=set(read_parquet(paths.manifest("test"))["path"].to_pylist()),
    )
    truth = data.train.labels
    given = np.array([located[row] for row in range(len(truth))])
    wrong = round(0.25 * len(truth))
    assert (given != truth).sum() == wrong > 0
    assert capsys.readouterr().out == f"{file}: {wrong:,} of {len(truth):,} labels are wrong\n"
