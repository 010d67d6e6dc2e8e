"""Changes that restart a search, and changes with which it resumes."""

import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.provenance import import_closure
from pipeline.commands.tune import run
from pipeline.commands.tune.run import SearchInputs, search_key, tuning_code
from pipeline.config.base import Duration
from pipeline.config.batch_sizes import EquivalentBatch
from pipeline.config.params import Params, load_params
from pipeline.config.recipe import CheckpointInterval
from pipeline.config.study import PlanText
from pipeline.distributed import visible_gpus
from pipeline.training.checkpointing import STALE_AFTER_S
from tests.fixtures.projects import NETWORK
from tests.fixtures.tuning import NAME, write_search


@pytest.fixture
def params(tmp_path: Path) -> Params:
    write_search(tmp_path)
    return load_params(tmp_path / "params.yaml")


def key_of(
    params: Params, *, study: dict[str, Any] | None = None, train: dict[str, Any] | None = None, seeds: int = 1
) -> str:
    """With keys of the searched study and of `train` changed, for trials of this many seeds."""
    inputs = SearchInputs(rows=None, summary=None, source=None, identity={})  # type: ignore[arg-type]
    changed = params.model_copy(
        update={
            "studies": {"tiny": params.studies["tiny"].model_copy(update=study or {})},
            "train": params.train.model_copy(update=train or {}),
        }
    )
    return search_key(changed, params.tuning[NAME].model_copy(update={"seeds": seeds}), inputs)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"checkpoint": CheckpointInterval(steps=7)}},
        {"train": {"workers": 1}},
        {"train": {"timeout_seconds": 600.0}},
        {"study": {"recipe": {"checkpoint": {"steps": 7}}}},
        {"study": {"seeds": (0, 8)}},
        {"study": {"arms": ("full", "random")}},
        {"study": {"learning_rates": (0.05, 0.5)}},
        {"study": {"paper_figure": "mccord-2021-fig8", "keep_weights": "all"}},
        {"study": {"filter_replicates": 2, "needs": "filter"}},
        {"study": {"plan": PlanText(question="q", hypotheses=("h",), rate_selection="r")}},
        {"study": {"accuracy_every": Duration(epochs=1)}},
        {"study": {"x_axis": "steps"}},
        {"train": {"concurrent_runs": 2}},
    ],
)
def test_settings_that_decide_no_trial_resume_the_search(changes: dict[str, Any], params: Params) -> None:
    assert key_of(params, **changes) == key_of(params)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"label_smoothing": 0.1}},
        {"study": {"recipe": {"label_smoothing": 0.1}}},
        {"study": {"seeds": (8,)}},
        {"study": {"models": (NETWORK,)}},
        # A trial with 8 simulated workers fits no batch of 20, even if it was trained with another.
        {"study": {"batch_sizes": (16, 20)}},
        {"study": {"budget": Duration(epochs=1)}},
        # Every value has to fit these too.
        {"study": {"models": ("small_cnn", NETWORK)}},
        {"study": {"budget_by_batch_size": {16: Duration(epochs=1)}}},
        {"study": {"equivalent_batch": EquivalentBatch(gradient_scale=0.8)}},
    ],
)
def test_settings_that_decide_a_trial_restart_the_search(changes: dict[str, Any], params: Params) -> None:
    assert key_of(params, **changes) != key_of(params)


def test_all_seeds_of_a_trial_are_part_of_the_key(params: Params) -> None:
    def key(*seeds: int) -> str:
        return key_of(params, study={"seeds": seeds}, seeds=2)

    assert key(0, 1) != key(0, 8)
    assert key(0, 1, 5) == key(0, 1, 6)


def test_the_code_of_a_search_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert import_closure("pipeline.tuning.search").keys() >= run._DECIDING
    digests = [tuning_code()]
    for module in sorted(run._DECIDING - {"pipeline.tuning.search"}):
        with monkeypatch.context() as patched:
            patched.setattr(run, "_DECIDING", run._DECIDING - {module})
            digests.append(tuning_code())
    assert len(set(digests)) == len(run._DECIDING)


@pytest.mark.parametrize(
    ("named", "count", "expected"),
    [(None, 2, ["0", "1"]), (None, 0, []), ("", 0, []), ("GPU-1,GPU-2", 2, ["GPU-1", "GPU-2"]), ("3,-1,1", 1, ["3"])],
)
def test_gpus_are_those_that_this_process_sees(
    named: str | None, count: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    assert visible_gpus() == expected


def test_a_search_that_goes_on_is_not_taken_for_abandoned(tmp_path: Path) -> None:
    own, active, abandoned, empty = (tmp_path / name for name in ("own", "active", "abandoned", "empty"))
    for place in (own, active, abandoned):
        place.mkdir()
        (place / "journal.log").touch()
    empty.mkdir()
    long_ago = (0.0, (abandoned / "journal.log").stat().st_mtime - STALE_AFTER_S - 60)
    for path in (own, active, abandoned, empty, abandoned / "journal.log"):
        os.utime(path, long_ago)
    run._remove_abandoned(own)
    assert {place.name for place in tmp_path.iterdir()} == {"own", "active"}
