"""Searches that `tune` rejects before it trains."""

from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from pipeline.__main__ import main
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.config.params import load_params
from tests.fixtures.printed_errors import key_within, printed_error
from tests.fixtures.tuning import arguments, tune, write_search


def test_a_winner_that_could_not_be_written_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_search(tmp_path)
    file, yaml = tmp_path / "params.yaml", YAML(typ="safe", pure=True)
    tree = yaml.load(file.read_text())
    tree["studies"]["other"] = tree["studies"]["tiny"]  # one object, which is written as an anchor and its alias
    with file.open("w") as opened:
        yaml.dump(tree, opened)
    data.images("train").unlink()
    assert tune(tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == str(file)
    assert "studies.tiny" in str(error)


def test_the_parallel_way_without_workers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_search(tmp_path, scheduler="parallel")
    assert tune(tmp_path) == 2
    assert printed_error(capsys.readouterr().err).key == "tuning.lr.scheduler"


def test_unknown_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_search(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["tune", "cifar", *arguments(tmp_path)[1:]])
    assert ended.value.code == 2
    assert printed_error(capsys.readouterr().err).key == "tune cifar"


def test_a_search_that_does_not_fit_its_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_search(tmp_path, space={"recipe.optimizer.beta1": {"uniform": [0.8, 0.9]}})
    load_params(tmp_path / "params.yaml")
    data.images("train").unlink()
    assert tune(tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert key_within(error, tmp_path / "params.yaml") == "tuning.lr.space.recipe.optimizer.beta1"


def test_without_val_rows_there_is_nothing_to_evaluate_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_search(tmp_path)
    manifest = read_parquet(data.manifest("train"))
    index = manifest.column_names.index("val")
    write_parquet(data.manifest("train"), manifest.set_column(index, "val", [np.zeros(len(manifest), dtype=bool)]))
    assert tune(tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == str(data.manifest("train"))
    assert "prepare.val_size" in str(error)
