"""Several searches side by side."""

from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest
from made_up_tuning import SEARCH, tune, write_search
from ruamel.yaml import YAML

from pipeline.artifacts.json_file import read_json
from pipeline.paths import DataPaths
from pipeline.tuning.source import judged_rows


def _with_two(folder: Path, **changes: Any) -> DataPaths:
    """The project with the search `lr`, and another, `adam`, of other values."""
    data = write_search(folder, trials=2, epochs=2, places=None, rule={"name": "none"})
    path, yaml = folder / "params.yaml", YAML()
    tree = yaml.load(path)
    space = {"learning_rates": {"log_uniform": [1e-4, 1e-2]}, "recipe.optimizer": {"choices": [{"name": "adamw"}]}}
    tree["tuning"]["adam"] = {**tree["tuning"]["lr"], "space": space, **changes}
    with path.open("w") as stream:
        yaml.dump(tree, stream)
    return data


def test_searches_of_one_size_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _with_two(tmp_path)
    assert tune(tmp_path, "lr", "adam") == 0
    said = capsys.readouterr().out
    rows = pyarrow.csv.read_csv(data.tuning_comparison).to_pylist()
    assert {row["search"] for row in rows} == {"lr", "adam"}
    assert rows[0]["accuracy"] >= rows[1]["accuracy"]
    n = int(judged_rows(data).sum())
    for row in rows:
        assert row["accuracy"] == read_json(data.tuning_summary(row["search"]))["winner"]["accuracy"]
        assert row["low"] <= row["accuracy"] <= row["high"]
        assert (row["trials"], row["epochs"], row["epochs_allowed"]) == (2, 4, 4)
    assert f"intervals over the {n} images" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trials": 3}, "tuning.adam.trials: 3, and 2 in lr; make them equal"),
        ({"epochs": 3}, "tuning.adam.epochs: 3, and 2 in lr"),
        ({"rule": dict(SEARCH["rule"])}, "tuning.adam.rule: "),
    ],
)
def test_a_search_that_has_more_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    data = _with_two(tmp_path, **changes)
    assert tune(tmp_path, "lr", "adam") == 2
    assert said in capsys.readouterr().err
    assert not data.tuning_summary("lr").exists()
