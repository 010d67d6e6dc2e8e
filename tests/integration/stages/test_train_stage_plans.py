"""The train stage registers the plans of all studies before it trains a run."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.artifacts.plans import read_registered_plans, read_run_dates
from pipeline.config.params import load_params
from pipeline.config.study_plan import build_plan
from pipeline.paths import DataPaths, WorkPaths
from pipeline.stages import train as train_stage
from tests.fixtures.training import runs_of, stage, write_project

_STUDY: dict[str, Any] = {"models": ["small_cnn"], "arms": ["full", "filtered"], "seeds": [0]}
_TEXT = {"question": "Does it help?", "hypotheses": ["It does."], "rate_selection": "On val."}


def _fails(*_: Any, **__: Any) -> None:
    raise RuntimeError("no run today")


def _work(folder: Path) -> WorkPaths:
    return WorkPaths(root=folder / "work")


def test_plans_are_registered_before_the_first_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of studies that are not trained now are registered, too."""
    write_project(tmp_path, study=_STUDY)
    path = tmp_path / "params.yaml"
    yaml = YAML()
    tree = yaml.load(path)
    tree["studies"]["later"] = {**tree["studies"]["tiny"], "seeds": [7]}
    yaml.dump(tree, path)
    monkeypatch.setattr(train_stage, "execute_run", _fails)
    with pytest.raises(RuntimeError):
        stage("train", tmp_path)
    params = load_params(path)
    for name in ("tiny", "later"):
        (statement,) = read_registered_plans(_work(tmp_path).plans(name))
        assert statement.plan == build_plan(name, params.studies[name], params.train, params.report)
    assert list(_work(tmp_path).ledger.glob("[0-9a-f]*")) == []


def test_a_changed_plan_is_added_and_trains_nothing_again(tmp_path: Path) -> None:
    data = write_project(tmp_path, study=_STUDY)
    assert stage("train", tmp_path) == 0
    (first,) = read_registered_plans(_work(tmp_path).plans("tiny"))
    fingerprints = [row["fingerprint"] for row in runs_of(data)]
    entries = {path: path.stat().st_mtime_ns for path in _work(tmp_path).ledger.glob("[0-9a-f]*")}
    dates = read_run_dates(_work(tmp_path).plans("tiny"))
    assert set(dates) == set(fingerprints)
    assert all(date is not None and date > first.date for date in dates.values())

    write_project(tmp_path, study={**_STUDY, "plan": _TEXT})
    assert stage("train", tmp_path) == 0
    before, after = read_registered_plans(_work(tmp_path).plans("tiny"))
    assert (before, after.plan["question"]) == (first, "Does it help?")
    assert [row["fingerprint"] for row in runs_of(data)] == fingerprints
    assert {path: path.stat().st_mtime_ns for path in entries} == entries
    assert read_run_dates(_work(tmp_path).plans("tiny")) == dates


def test_an_unfiltered_study_needs_no_filter(tmp_path: Path) -> None:
    data = write_project(tmp_path, study={**_STUDY, "arms": ["full"], "needs": "prepare"})
    shutil.rmtree(data.root / "filter")
    assert stage("train", tmp_path) == 0
    assert [row["status"] for row in runs_of(DataPaths(root=tmp_path / "data"))] == ["finished"]
