"""Comparison of several searches."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.csv
import pytest
from ruamel.yaml import YAML

from pipeline.artifacts.files import read_json
from pipeline.commands.tune.outputs import write_comparison
from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.tuning.results import SearchResult
from pipeline.tuning.sources import val_rows
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.tuning import SEARCH, tune, write_search


def read_csv(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.csv.read_csv(path).to_pylist()
    return rows


def _with_two(folder: Path, *, lr: Mapping[str, Any] | None = None, **changes: Any) -> DataPaths:
    """The project with the search `lr`, and another, `adam`, of other values."""
    data = write_search(
        folder, **{"trials": 2, "epochs": 2, "max_concurrent_trials": None, "pruner": {"name": "none"}, **(lr or {})}
    )
    path, yaml = folder / "params.yaml", YAML()
    tree = yaml.load(path)
    space = {"learning_rates": {"log_uniform": [1e-4, 1e-2]}, "recipe.optimizer": {"choices": [{"name": "adamw"}]}}
    tree["tuning"]["adam"] = {**tree["tuning"]["lr"], "space": space, **changes}
    with path.open("w") as stream:
        yaml.dump(tree, stream)
    return data


@pytest.mark.slow
def test_searches_of_one_size_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _with_two(tmp_path)
    assert tune(tmp_path, "lr", "adam") == 0
    *_, last = capsys.readouterr().out.splitlines()
    rows = read_csv(data.tuning_comparison)
    assert {row["search"] for row in rows} == {"lr", "adam"}
    assert rows[0]["accuracy"] >= rows[1]["accuracy"]
    n = int(val_rows(data).sum())
    for row in rows:
        # One search is of AdamW, the other of SGD's momentum: either winner is valid with both.
        load_params(data.tuned(row["search"]))
        assert row["accuracy"] == read_json(data.tuning_summary(row["search"]))["winner"]["accuracy"]
        assert row["low"] <= row["accuracy"] <= row["high"]
        assert (row["trials"], row["epochs"], row["epochs_allowed"]) == (2, 4, 4)
    assert last.startswith(f"{data.tuning_comparison}: ")
    assert f" {n} validation images;" in last


@pytest.mark.slow
def test_a_winner_that_stopped_early_is_compared_at_the_end(tmp_path: Path) -> None:
    """With no tolerance the better of two trials alone remains after an epoch."""
    lead = {"name": "threshold", "amount": 0.0, "kind": "absolute"}
    data = _with_two(tmp_path, lr={"pruner": lead}, pruner=lead)
    assert tune(tmp_path, "lr", "adam") == 0
    winner = read_json(data.tuning_summary("adam"))["winner"]
    assert winner["epochs"] == 1
    curve = [row for row in read_csv(data.tuning_curves("adam")) if row["trial"] == winner["trial"]]
    assert [(row["epoch"], row["afterwards"]) for row in curve] == [(1, False), (2, True)]
    (row,) = (row for row in read_csv(data.tuning_comparison) if row["search"] == "adam")
    assert row["accuracy"] == winner["accuracy_at_end"] == curve[1]["accuracy"]


def _found(summary: dict[str, Any], images: str = "the same") -> SearchResult:
    return cast("SearchResult", SimpleNamespace(summary=lambda: summary, n_val=40, images=images))


def test_searches_on_other_images_are_not_compared(tmp_path: Path) -> None:
    searches = {"lr": _found({}), "adam": _found({}, images="others")}
    with pytest.raises(InputError) as raised:
        list(write_comparison(searches, DataPaths(root=tmp_path)))
    assert raised.value.key == str(tmp_path)


def test_a_winner_that_fails_comes_last_without_an_accuracy(tmp_path: Path) -> None:
    data, searches = DataPaths(root=tmp_path), {}
    for name, at_end in (("lr", None), ("adam", 0.25)):
        winner: dict[str, Any] = {"accuracy": 0.9, "accuracy_at_end": at_end, "values": {}}
        summary = {"winner": winner, "trials": 2, "failed": 0, "epochs": 3, "epochs_allowed": 4}
        searches[name] = _found(summary)
    first, second, _ = write_comparison(searches, data)
    assert first.startswith("adam: 0.2500 (")
    assert second.startswith("lr: ")
    assert [row["accuracy"] for row in read_csv(data.tuning_comparison)] == [0.25, None]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"trials": 3}, "tuning.adam.trials"),
        ({"epochs": 3}, "tuning.adam.epochs"),
        ({"pruner": dict(SEARCH["pruner"])}, "tuning.adam.pruner"),
    ],
)
def test_a_search_that_has_more_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], key: str
) -> None:
    data = _with_two(tmp_path, **changes)
    assert tune(tmp_path, "lr", "adam") == 2
    assert printed_error(capsys.readouterr().err).key == key
    assert not data.tuning_summary("lr").exists()
