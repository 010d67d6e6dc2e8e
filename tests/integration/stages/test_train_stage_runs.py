"""Which runs of a study are trained, recorded and published, on made-up results."""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from pipeline.artifacts.files import read_json
from pipeline.distributed import World
from pipeline.energy import UNKNOWN_ENERGY, Energy
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.runs.grid import RunSpec
from pipeline.stages import parallel
from pipeline.stages import train as train_stage
from pipeline.training.checkpointing import Checkpoints
from pipeline.training.run_key import checkpoint_folder_name
from pipeline.training.weights import load_trained
from tests.fixtures.made_up_runs import FOUR_CELLS, MadeUpRuns
from tests.fixtures.training import runs_of, stage, write_kept, write_project

Trained = Callable[[Callable[[RunSpec], float | None]], MadeUpRuns]


@pytest.fixture
def trained_by(monkeypatch: pytest.MonkeyPatch) -> Trained:
    def use(top1: Callable[[RunSpec], float | None]) -> MadeUpRuns:
        trainer = MadeUpRuns(top1)
        monkeypatch.setattr(train_stage, "execute_run", trainer)
        return trainer

    return use


def test_arms_with_equal_images_are_trained_once(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study={"arms": ["full", "filtered", "random", "random_uniform"], "seeds": [0, 1]})
    write_kept(data, np.ones(60, dtype=np.bool_))
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert [spec.settings.seed for spec in trainer.called] == [0, 1]
    rows = runs_of(data)
    assert len(rows) == 8
    assert len({row["fingerprint"] for row in rows}) == 2
    history = pyarrow.parquet.read_table(data.history("tiny"))
    assert sorted(history["fingerprint"].to_pylist()) == sorted({row["fingerprint"] for row in rows})


@pytest.mark.slow
def test_the_record_has_the_time_of_earlier_processes_by_arm(tmp_path: Path, trained_by: Trained) -> None:
    for seeds in ([0], [0, 1]):
        write_project(tmp_path, study={"arms": ["full", "filtered"], "seeds": seeds})
        trained_by(lambda spec: 0.5)
        assert stage("train", tmp_path) == 0
    record = read_json(tmp_path / "work/resources/train@tiny.json")
    assert record["arms_wall_s"] == {"full": 2 * 1.5, "filtered": 2 * 1.5}
    assert record["wall_s"] > 2 * 1.5
    assert record["images"] == 4 * 20


def _energy_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every reading of the stage's meter 4 J of GPUs and 1 J of processors larger than the one before."""
    readings = itertools.count()

    def read() -> Energy:
        n = next(readings)
        return Energy(gpu=4.0 * n, cpu=1.0 * n)

    @contextmanager
    def metered(world: World) -> Iterator[Callable[[], Energy]]:
        yield read

    monkeypatch.setattr(parallel, "_energy_of_all_ranks", metered)


def _record(work: Path) -> dict[str, Any]:
    record: dict[str, Any] = read_json(work / "resources/train@tiny.json")
    return record


def test_the_record_has_the_energy_of_earlier_processes_by_arm(
    tmp_path: Path, trained_by: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seeds in ([0], [0, 1]):
        write_project(tmp_path, study={"arms": ["full", "filtered"], "seeds": seeds})
        trained_by(lambda spec: 0.5)
        _energy_by_cell(monkeypatch)
        assert stage("train", tmp_path) == 0
    record = _record(tmp_path / "work")
    both = {"gpu": 2 * 4.0, "cpu": 2 * 1.0, "memory": None}
    assert record["arms_joules"] == {"full": both, "filtered": both}
    # Two runs of an earlier process, and the fifth reading of this one.
    assert record["joules"] == {"gpu": (2 + 4) * 4.0, "cpu": (2 + 4) * 1.0, "memory": None}


@pytest.mark.slow
def test_the_total_energy_of_a_resumed_run_is_unknown(
    tmp_path: Path, trained_by: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_project(tmp_path, study={"arms": ["full", "filtered"], "seeds": [0]})
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    (full,) = (row["fingerprint"] for row in runs_of(data) if row["arm"] == "full")
    work = WorkPaths(root=tmp_path / "work")
    shutil.rmtree(work.ledger)
    Checkpoints(work.checkpoints("train@tiny") / checkpoint_folder_name(full)).save(1, {})
    trained_by(lambda spec: 0.5)
    _energy_by_cell(monkeypatch)
    assert stage("train", tmp_path) == 0
    record, unknown = _record(tmp_path / "work"), vars(UNKNOWN_ENERGY)
    assert record["arms_joules"] == {"full": unknown, "filtered": {"gpu": 4.0, "cpu": 1.0, "memory": None}}
    assert record["joules"] == unknown
    assert read_json(work.ledger / full / "timing.json")["joules"] == unknown


def test_the_record_has_the_time_before_a_run_was_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path, study={"arms": ["full"], "seeds": [0]})
    trainer = MadeUpRuns(lambda spec: 0.5)
    monkeypatch.setattr(train_stage, "execute_run", lambda *a, **b: replace(trainer(*a, **b), seconds=1000.0))
    monkeypatch.setattr(train_stage, "has_checkpoints", lambda folder: True)
    assert stage("train", tmp_path) == 0
    assert 1000 <= _record(tmp_path / "work")["wall_s"] < 2000


def test_other_seeds_and_arms_are_the_only_ones_trained(tmp_path: Path, trained_by: Trained) -> None:
    write_project(tmp_path, study={"arms": ["full"], "seeds": [0]})
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    write_project(tmp_path, study={"arms": ["full", "random"], "seeds": [0, 1]})
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert [(spec.arm, spec.settings.seed) for spec in trainer.called] == [("random", 0), ("full", 1), ("random", 1)]


@pytest.mark.slow
def test_another_filter_retrains_what_it_changes(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study={"seeds": [0]})
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    write_kept(data, np.arange(60) % 10 != 1)  # as many, and others
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert {spec.arm for spec in trainer.called} >= {"filtered"}
    assert "full" not in {spec.arm for spec in trainer.called}


def test_skipped_and_diverged_runs_are_recorded(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study={"arms": ["full", "filtered"], "seeds": [0], "batch_sizes": [20, 58]})
    trainer = trained_by(lambda spec: None if spec.arm == "full" else 0.5)
    assert stage("train", tmp_path) == 0
    assert len(trainer.called) == 2
    rows = {(row["batch_size"], row["arm"]): row for row in runs_of(data)}
    assert {key: row["status"] for key, row in rows.items()} == {
        (20, "full"): "diverged", (20, "filtered"): "finished", (58, "full"): "skipped", (58, "filtered"): "skipped",
    }  # fmt: skip
    assert rows[58, "full"]["reason"] == "batch 58 is larger than the 54 images of arm filtered"
    assert rows[58, "full"]["fingerprint"] == ""
    assert rows[20, "full"]["top1"] is None
    assert rows[20, "full"]["steps"] == 1
    assert np.load(data.correct("tiny")).any(1).tolist() == [False, True, False, False]


def _first_name(data: DataPaths) -> str:
    return load_trained(data.trained_weights("tiny")).class_names[0]


def test_the_best_mean_over_seeds_is_published(tmp_path: Path, trained_by: Trained) -> None:
    top1 = {("full", 0): 0.9, ("full", 1): 0.1, ("filtered", 0): 0.6, ("filtered", 1): 0.6}
    data = write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda spec: top1[spec.arm, spec.settings.seed])
    assert stage("train", tmp_path) == 0
    assert _first_name(data) == "filtered"


def test_the_next_best_is_published_if_the_first_seed_diverged(tmp_path: Path, trained_by: Trained) -> None:
    top1 = {("full", 0): None, ("full", 1): 0.9, ("filtered", 0): 0.5, ("filtered", 1): 0.5}
    data = write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda spec: top1[spec.arm, spec.settings.seed])
    assert stage("train", tmp_path) == 0
    assert _first_name(data) == "filtered"


def test_a_study_without_a_finished_run_is_an_error(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda spec: None)
    assert stage("train", tmp_path) == 0
    assert data.trained_weights("tiny").read_bytes() == b""
    assert {row["status"] for row in runs_of(data)} == {"diverged"}
    assert np.load(data.correct("tiny")).shape[0] == 4


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study=FOUR_CELLS)
    gone = 4_194_305  # larger than any process id
    entries = WorkPaths(root=tmp_path / "work").ledger
    left = [
        entries / f".k.{gone}.tmp" / "result.json",
        entries / f".k.weights.{gone}.tmp",
        data.runs("tiny").with_name(f".tiny.parquet.{gone}.tmp"),
        data.trained_weights("tiny").with_name(f".best.pt.{gone}.tmp"),
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert not list(tmp_path.rglob("*.tmp"))


def _write_checkpoint(work: WorkPaths, owner: str, key: str, days: float = 8) -> Path:
    folder = work.checkpoints(owner) / key
    Checkpoints(folder).save(1, {})
    os.utime(folder, (age := time.time() - days * 86_400, age))
    return folder


@pytest.mark.slow
def test_a_finished_study_removes_abandoned_checkpoints(tmp_path: Path, trained_by: Trained) -> None:
    write_project(tmp_path, study=FOUR_CELLS)
    work = WorkPaths(root=tmp_path / "work")
    _write_checkpoint(work, "train@tiny", "of-settings-given-up")
    _write_checkpoint(work, "train@tiny", "of-settings-in-use", days=6)
    others = [_write_checkpoint(work, owner, "k") for owner in ("train@tiny-2", "train@other", "finetune@resnet18")]
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert [folder.name for folder in work.checkpoints("train@tiny").iterdir()] == ["of-settings-in-use"]
    assert all(len(list(folder.iterdir())) == 1 for folder in others)


def test_checkpoints_of_finished_runs_are_removed(tmp_path: Path, trained_by: Trained) -> None:
    """A kill between the two leaves a finished run with its last checkpoint."""
    write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    work = WorkPaths(root=tmp_path / "work")
    fingerprint = runs_of(DataPaths(root=tmp_path / "data"))[0]["fingerprint"]
    _write_checkpoint(work, "train@tiny", checkpoint_folder_name(str(fingerprint)), days=0)
    assert stage("train", tmp_path) == 0
    assert not work.checkpoints("train@tiny").exists()


def test_a_study_that_stops_early_leaves_all_checkpoints(tmp_path: Path, trained_by: Trained) -> None:
    """The user may return to its earlier settings."""
    write_project(tmp_path, study=FOUR_CELLS)
    folder = _write_checkpoint(WorkPaths(root=tmp_path / "work"), "train@tiny", "of-settings-given-up")

    def stop_at_the_second(spec: RunSpec) -> float:
        if spec.arm == "filtered":
            raise InputError("enough")
        return 0.5

    trained_by(stop_at_the_second)
    assert stage("train", tmp_path) == 2
    assert len(list(folder.iterdir())) == 1


@pytest.mark.slow
def test_the_first_seed_keeps_its_weights_when_seeds_are_reordered(tmp_path: Path, trained_by: Trained) -> None:
    """A run that finished without weights is trained again if its weights are needed."""
    data = write_project(tmp_path, study={"arms": ["full"], "seeds": [0, 1]})
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    write_project(tmp_path, study={"arms": ["full"], "seeds": [1, 0]})
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert [spec.settings.seed for spec in trainer.called] == [1]
    assert load_trained(data.trained_weights("tiny")).class_names[2] == "1"


@pytest.mark.slow
def test_all_seeds_keep_their_weights_if_the_study_requests_it(tmp_path: Path, trained_by: Trained) -> None:
    """Runs that finished without weights are trained again, runs with weights are not."""
    write_project(tmp_path, study={"arms": ["full"], "seeds": [0, 1, 2]})
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    entries = WorkPaths(root=tmp_path / "work").ledger
    assert len(list(entries.glob("*/weights.pt"))) == 1
    data = write_project(tmp_path, study={"arms": ["full"], "seeds": [0, 1, 2], "keep_weights": "all"})
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert [spec.settings.seed for spec in trainer.called] == [1, 2]
    assert len(list(entries.glob("*/weights.pt"))) == 3
    assert load_trained(data.trained_weights("tiny")).class_names[2] == "0"


def test_a_study_that_keeps_no_weights_uses_runs_without_them(tmp_path: Path, trained_by: Trained) -> None:
    study = {"arms": ["full"], "seeds": [0], "keep_weights": "none"}
    data = write_project(tmp_path, study=study)
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert not list(WorkPaths(root=tmp_path / "work").ledger.glob("*/weights.pt"))
    assert data.trained_weights("tiny").read_bytes() == b""
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert trainer.called == []
    write_project(tmp_path, study={**study, "keep_weights": "first_seed"})
    assert stage("train", tmp_path) == 0
    assert len(trainer.called) == 1
    assert data.trained_weights("tiny").read_bytes() != b""
    # Weights of an earlier setting or another study change no result of this one.
    write_project(tmp_path, study=study)
    assert stage("train", tmp_path) == 0
    assert data.trained_weights("tiny").read_bytes() == b""


def test_results_of_stale_settings_are_not_used(tmp_path: Path, trained_by: Trained) -> None:
    write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    write_project(tmp_path, study=FOUR_CELLS, train={"label_smoothing": 0.1})
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert [spec.settings for spec in trainer.called] == [
        replace(spec.settings, label_smoothing=0.1) for spec in trainer.called
    ]
    assert len(trainer.called) == 4


def test_keys_of_execution_retrain_nothing(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    table = data.runs("tiny").read_bytes()
    how = {"eval_batch_size": 3, "micro_batch": 20, "checkpoint": {"steps": 1}}
    write_project(tmp_path, study=FOUR_CELLS, train=how)
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert trainer.called == []
    assert data.runs("tiny").read_bytes() == table


@pytest.mark.slow
def test_another_number_of_threads_is_another_run_on_a_cpu(tmp_path: Path, trained_by: Trained) -> None:
    write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    write_project(tmp_path, study=FOUR_CELLS, train={"threads_per_worker": 2})
    trainer = trained_by(lambda spec: 0.5)
    assert stage("train", tmp_path) == 0
    assert len(trainer.called) == 4
