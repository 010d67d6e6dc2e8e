"""docs/tooling/headline_figure.py draws the runs of the studies at equal steps, and no others of the ledger."""

import runpy
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.tooling.recorded_runs import unpack_ledger
from pipeline.errors import InputError
from pipeline.runs.ledger import Ledger
from pipeline.training.run_key import RunKey
from tests.fixtures.source_tree import ROOT

_PROGRAM: dict[str, Any] = runpy.run_path(str(ROOT / "docs/tooling/headline_figure.py"))
_SHOWN = {256: 4, 2048: 4, 6272: 10, 20480: 4}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the recorded runs of the headline, and return their folder."""
    folder = tmp_path_factory.mktemp("headline")
    unpack_ledger(_PROGRAM["LEDGER"], folder)
    return folder / ".work" / "cells"


@pytest.fixture
def ledger(tmp_path: Path, unpacked: Path) -> Ledger:
    """Return a copy of the recorded runs."""
    return Ledger(Path(shutil.copytree(unpacked, tmp_path / "cells")))


def _add(ledger: Ledger, *, steps: int, settings: Mapping[str, Any] = {}, **job: str) -> None:
    """Add a copy of a run of batch 6,272 and seed 0 with another job, under the last name of the ledger."""
    keys = list(ledger.run_keys())
    source = next(key for key in keys if _steps(key) == (6272, 0, steps))
    changed = {**source.job, **job, "settings": {**source.job["settings"], **settings}}
    last = max(key.fingerprint for key in keys)
    names = (replace(source, job=changed, machine={**source.machine, "threads": n}) for n in range(2, 10_000))
    named = next(key for key in names if key.fingerprint > last)
    ledger.add(named, ledger.get(source.fingerprint))
    assert [key.fingerprint for key in ledger.run_keys()][-1] == named.fingerprint


def _steps(key: RunKey) -> tuple[int, int, int]:
    settings = key.job["settings"]
    return settings["batch_size"], settings["seed"], settings["steps"]


def test_a_size_has_as_many_runs_of_each_arm_as_seeds(ledger: Ledger) -> None:
    found = _PROGRAM["read_accuracies"](ledger)
    assert {key: len(of_seeds) for key, of_seeds in found.items()} == {
        (size, arm): seeds for size, seeds in _SHOWN.items() for arm in ("full", "filtered", "random")
    }


@pytest.mark.parametrize("settings", [{}, {"optimizer": "lars", "steps": 96, "warmup_steps": 10}])
def test_runs_of_other_steps_or_settings_are_left_out(ledger: Ledger, settings: dict[str, Any]) -> None:
    before = _PROGRAM["read_accuracies"](ledger)
    _add(ledger, steps=91, settings=settings)
    assert _PROGRAM["read_accuracies"](ledger) == before


def test_a_second_run_of_a_size_arm_and_seed_is_refused(ledger: Ledger) -> None:
    _add(ledger, steps=96)
    with pytest.raises(InputError, match=r"batch 6272, seed 0: is the second one of arm \w+; remove one of them"):
        _PROGRAM["read_accuracies"](ledger)


def test_images_of_no_arm_are_refused(ledger: Ledger) -> None:
    _add(ledger, steps=96, members="0" * 64)
    with pytest.raises(InputError, match=r"batch 6272, seed 0: its images are those of none of full, filtered"):
        _PROGRAM["read_accuracies"](ledger)


def test_differences_have_the_interval_of_the_looks(ledger: Ledger) -> None:
    found = _PROGRAM["read_accuracies"](ledger)
    estimate = _PROGRAM["difference_estimate"](found, 6272, "full")
    assert (round(estimate.mean, 2), round(estimate.low, 2), round(estimate.high, 2)) == (-0.55, -1.08, -0.02)
    text = f"−{-estimate.low:.2f} to −{-estimate.high:.2f}"
    for page in ("README.md", "docs/results/verdict.md", "docs/results/headline/README.md"):
        assert text in (ROOT / page).read_text(encoding="utf-8"), page
    assert _PROGRAM["confidence_of_differences"](256) == 0.95
