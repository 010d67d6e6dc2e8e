"""A study that stops at a look, from the train stage to its table."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.plan.size import plan_from_ledger
from pipeline.config.params import load_params
from pipeline.paths import DataPaths, WorkPaths
from tests.fixtures.training import runs_of, stage, write_project

STUDY: dict[str, Any] = {"models": ["small_cnn"], "arms": ["filtered", "random"], "seeds": [0, 1, 2, 3, 4]}


def _trained(folder: Path) -> int:
    return len(list(WorkPaths(root=folder / "work").ledger.glob("[0-9a-f]*")))


def _seeds(data: DataPaths) -> list[tuple[int, str]]:
    return [(row["seed"], row["arm"]) for row in runs_of(data)]


def _missing(folder: Path) -> int:
    """Return the number of runs that `plan` lists as missing."""
    params, work = load_params(folder / "params.yaml"), WorkPaths(root=folder / "work")
    return len(plan_from_ledger(params, "tiny", DataPaths(root=folder / "data"), work).missing)


def _write(folder: Path, margin: float, **study: Any) -> DataPaths:
    return write_project(folder, study={**STUDY, **study}, report={"margin": margin, "primary": "random"})


@pytest.mark.parametrize(("margin", "seeds"), [(99.0, 3), (0.001, 5)])
def test_seeds_are_trained_in_the_order_of_looks_until_one_decides(tmp_path: Path, margin: float, seeds: int) -> None:
    """A margin of 99 points gives equivalence at the first look; a margin of 0.001 points never does."""
    data = _write(tmp_path, margin, looks=[3, 5])
    assert _missing(tmp_path) == 10
    assert stage("train", tmp_path) == 0
    assert _missing(tmp_path) == 0
    assert _seeds(data) == [(seed, arm) for seed in range(seeds) for arm in ("filtered", "random")]
    assert _trained(tmp_path) == 2 * seeds


@pytest.mark.slow
def test_seeds_trained_before_do_not_enter_a_study_that_stopped(tmp_path: Path) -> None:
    data = _write(tmp_path, 99.0)
    assert stage("train", tmp_path) == 0
    assert len(_seeds(data)) == _trained(tmp_path) == 10
    _write(tmp_path, 99.0, looks=[3, 5])
    assert stage("train", tmp_path) == 0
    assert (len(_seeds(data)), _trained(tmp_path)) == (6, 10)
