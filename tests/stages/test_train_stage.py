"""A study as a user runs it: its files, what is trained again, and what a kill leaves behind."""

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from made_up import NETWORK
from made_up_training import (
    TIMEOUT_S,
    TINY,
    alive,
    bright_images,
    command,
    descendants,
    kill,
    run,
    stage,
    start,
    write_kept,
    write_project,
)

from pipeline.models import build
from pipeline.paths import DataPaths, WorkPaths
from pipeline.stages import train as train_stage
from pipeline.training.cells import HISTORY_SCHEMA, RUNS_SCHEMA
from pipeline.training.ledger import CellResult
from pipeline.training.state import Record
from pipeline.training.study import Cell
from pipeline.training.weights import load_trained, save_trained

FOUR_CELLS: dict[str, Any] = {"arms": ["full", "filtered"], "seeds": [0, 1]}
# Without BatchNorm, whose statistics would be most of a cell's time; long enough to be killed in.
STEPS = 40
QUICK: dict[str, Any] = {**FOUR_CELLS, "models": ["small_cnn"], "budget": {"steps": STEPS}}
TWO_WORKERS = {"workers": 2, "simulated_workers": 2}


def _runs(data: DataPaths) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(data.runs("tiny")).to_pylist()
    return rows


def _outputs(data: DataPaths) -> dict[str, bytes]:
    """All that the stage wrote; the project's own place is taken out of the provenance."""
    files = sorted(path for path in (data.root / "train").rglob("*") if path.is_file())
    return {
        str(path.relative_to(data.root)): path.read_bytes().replace(str(data.root.parent).encode(), b"")
        for path in files
    }


def _entries(folder: Path) -> list[Path]:
    """The finished cells in the ledger."""
    cells = WorkPaths(root=folder / "work").cells
    return sorted(path for path in cells.glob("[!.]*")) if cells.exists() else []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose study a process of its own has trained, uninterrupted."""
    folder = tmp_path_factory.mktemp("finished")
    write_project(folder, study=QUICK)
    done = run(command("train", folder))
    assert done.returncode == 0, done.stderr
    return folder


def test_the_table_has_a_row_for_each_cell(finished: Path) -> None:
    data = DataPaths(root=finished / "data")
    assert pyarrow.parquet.read_schema(data.runs("tiny")).names == RUNS_SCHEMA.names
    rows = _runs(data)
    assert [(row["seed"], row["arm"]) for row in rows] == list(itertools.product([0, 1], ["full", "filtered"]))
    for row in rows:
        assert row["status"] == "finished"
        assert row["n_train"] == {"full": 60, "filtered": 54}[row["arm"]]
        assert (row["steps"], row["examples"]) == (STEPS, 20 * STEPS)
        assert row["epochs"] == pytest.approx(20 * STEPS / row["n_train"])
        assert (row["workers"], row["simulated_workers"], row["bn_group"]) == (1, 1, 20)
        assert (row["micro_batch"], row["skipped_steps"], row["critical_batch"]) == (20, 0, None)
        assert row["trained_on"] == "1 processes of 1 threads on cpu, 20 images at a time"
        assert 0 <= row["top1"] <= 1
    assert len({row["fingerprint"] for row in rows}) == 4


def test_the_files_agree_with_each_other(finished: Path) -> None:
    data = DataPaths(root=finished / "data")
    rows = _runs(data)
    correct = np.load(data.correct("tiny"))
    assert correct.shape == (4, 22)
    assert correct.mean(1) == pytest.approx([row["top1"] for row in rows])
    history = pyarrow.parquet.read_table(data.history("tiny"))
    assert history.schema.names == HISTORY_SCHEMA.names
    assert set(history["fingerprint"].to_pylist()) == {row["fingerprint"] for row in rows}
    means = {arm: np.mean([row["top1"] for row in rows if row["arm"] == arm]) for arm in ("full", "filtered")}
    metrics = json.loads(data.train_metrics("tiny").read_text())
    assert metrics == pytest.approx({f"small_cnn {arm} batch 20 lr 0.05 wd 0.0005": means[arm] for arm in means})


def test_the_handed_out_network_is_the_best_arms_first_seed(finished: Path) -> None:
    data = DataPaths(root=finished / "data")
    rows, correct = _runs(data), np.load(data.correct("tiny"))
    means = {arm: np.mean([row["top1"] for row in rows if row["arm"] == arm]) for arm in ("full", "filtered")}
    best = max(means, key=lambda arm: means[arm])
    (row,) = [i for i, row in enumerate(rows) if row["arm"] == best and row["seed"] == 0]
    images, labels = bright_images(22, seed=1)
    network = load_trained(data.trained_weights("tiny"))
    names = [network.class_names[label] for label in labels]
    assert [a == b for a, b in zip(network.predict(images), names, strict=True)] == correct[row].tolist()


def test_no_wall_time_or_place_is_in_the_artefacts(finished: Path) -> None:
    seconds = json.loads((_entries(finished)[0] / "timing.json").read_text())["seconds"]
    for name, content in _outputs(DataPaths(root=finished / "data")).items():
        assert str(seconds).encode() not in content, name
        assert str(Path.cwd()).encode() not in content, name


def test_a_second_run_trains_nothing(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _outputs(DataPaths(root=finished / "data"))

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a finished cell is trained again")

    monkeypatch.setattr(train_stage, "run_cell", fail)
    assert stage("train", finished) == 0
    assert _outputs(DataPaths(root=finished / "data")) == before


def _wait_until(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_killed_study_ends_in_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    data = write_project(tmp_path, study=QUICK)
    process = start(command("train", tmp_path))
    try:
        _wait_until(lambda: _entries(tmp_path), process)
    finally:
        kill(process)
    assert process.returncode == -signal.SIGKILL
    survivors = {path: path.stat().st_mtime_ns for path in _entries(tmp_path)}
    assert 1 <= len(survivors) < 4
    assert not data.runs("tiny").exists()
    done = run(command("train", tmp_path))
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in survivors} == survivors
    assert _outputs(data) == _outputs(DataPaths(root=finished / "data"))
    assert not list(tmp_path.rglob("*.tmp"))


def test_two_workers_by_the_stages_own_torchrun(tmp_path: Path) -> None:
    data = write_project(tmp_path, study={"arms": ["full"], "seeds": [0]}, train=TWO_WORKERS)
    done = run(command("train", tmp_path))
    assert done.returncode == 0, done.stderr
    (row,) = _runs(data)
    assert (row["status"], row["workers"], row["simulated_workers"], row["bn_group"]) == ("finished", 2, 2, 10)
    assert np.load(data.correct("tiny")).mean() == pytest.approx(row["top1"])
    assert load_trained(data.trained_weights("tiny")).network == NETWORK


@pytest.mark.slow
def test_what_all_ranks_find_wrong_is_said_once(tmp_path: Path) -> None:
    data = write_project(tmp_path, train=TWO_WORKERS)
    write_kept(data, np.arange(70) >= 60)
    done = run(command("train", tmp_path))
    assert done.returncode == 2
    assert done.stderr == f"error: {data.kept(NETWORK)}: does not fit the 60 training images; run `dvc repro`\n"


def test_one_study_at_a_time_and_no_orphans(tmp_path: Path) -> None:
    long = {"arms": ["full"], "seeds": [0], "budget": {"steps": 100_000}}
    data = write_project(tmp_path, study=long, train=TWO_WORKERS)
    lock = WorkPaths(root=tmp_path / "work").lock("train")
    process, ranks = start(command("train", tmp_path)), set[int]()
    try:
        _wait_until(lambda: lock.exists() and lock.read_text(), process)
        holder = int(lock.read_text())
        ranks = descendants(process.pid)
        assert holder in ranks
        assert len(alive(ranks)) == 2
        # Found by the first rank alone; the other's loss of it is not worth a traceback.
        second = run(command("train", tmp_path))
        assert second.returncode == 2
        assert second.stderr == f"error: train@tiny: already running as process {holder}; wait for it or end it\n"
        process.kill()
        end = time.monotonic() + 20
        while alive(ranks):
            assert time.monotonic() < end, f"still running: {alive(ranks)}"
            time.sleep(0.1)
    finally:
        kill(process, *ranks)
    assert not data.runs("tiny").exists()


@pytest.mark.slow
def test_an_interrupted_study_says_how_to_go_on(tmp_path: Path) -> None:
    long = {"arms": ["full"], "seeds": [0], "budget": {"steps": 100_000}}
    write_project(tmp_path, study=long, train=TWO_WORKERS)
    lock = WorkPaths(root=tmp_path / "work").lock("train")
    process, ranks = start(command("train", tmp_path)), set[int]()
    try:
        _wait_until(lambda: lock.exists() and lock.read_text(), process)
        ranks = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        kill(process, *ranks)
    assert process.returncode == 130
    assert err == "interrupted; run the same command again to go on\n"
    assert not alive(ranks)


class _Trainer:
    """Stands in for `run_cell`: no training, and results by rule. `called` lists the cells."""

    def __init__(self, top1: Callable[[Cell], float | None]) -> None:
        self._top1 = top1
        self.called: list[Cell] = []

    def __call__(self, cell: Cell, splits: Any, members: Any, *, weights: Path | None, **_: Any) -> CellResult:
        self.called.append(cell)
        history = (Record(epoch=1.0, step=1, examples=20, train_loss=1.0, lr=0.1),)
        diverged = CellResult(
            status="diverged",
            top1=None,
            balanced_accuracy=None,
            loss=None,
            correct=None,
            history=history,
            workers=1,
            places=("made up",),
            skipped_steps=0,
            micro_batch=20,
            critical_batch=None,
            seconds=0.0,
        )
        top1 = self._top1(cell)
        if top1 is None:
            return diverged
        if weights is not None:
            names = (cell.arm, str(cell.settings.batch_size), str(cell.settings.seed), "")
            save_trained(weights, build(NETWORK, 4, stem="imagenet", seed=0), TINY, names)
        correct = np.arange(22) < 22 * top1
        return replace(diverged, status="finished", top1=top1, balanced_accuracy=top1, loss=1.0, correct=correct)


Trained = Callable[[Callable[[Cell], float | None]], _Trainer]


@pytest.fixture
def trained_by(monkeypatch: pytest.MonkeyPatch) -> Trained:
    def use(top1: Callable[[Cell], float | None]) -> _Trainer:
        trainer = _Trainer(top1)
        monkeypatch.setattr(train_stage, "run_cell", trainer)
        return trainer

    return use


def test_arms_that_came_out_equal_are_trained_once(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study={"arms": ["full", "filtered", "random", "random_uniform"], "seeds": [0, 1]})
    write_kept(data, np.ones(60, dtype=np.bool_))
    trainer = trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    assert [cell.settings.seed for cell in trainer.called] == [0, 1]
    rows = _runs(data)
    assert len(rows) == 8
    assert len({row["fingerprint"] for row in rows}) == 2
    history = pyarrow.parquet.read_table(data.history("tiny"))
    assert sorted(history["fingerprint"].to_pylist()) == sorted({row["fingerprint"] for row in rows})


def test_other_seeds_and_arms_are_the_only_ones_trained(tmp_path: Path, trained_by: Trained) -> None:
    write_project(tmp_path, study={"arms": ["full"], "seeds": [0]})
    trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    write_project(tmp_path, study={"arms": ["full", "random"], "seeds": [0, 1]})
    trainer = trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    assert [(cell.arm, cell.settings.seed) for cell in trainer.called] == [("random", 0), ("full", 1), ("random", 1)]


def test_another_filter_retrains_what_it_changes(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study={"seeds": [0]})
    trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    write_kept(data, np.arange(60) % 10 != 1)  # as many, and others
    trainer = trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    assert {cell.arm for cell in trainer.called} >= {"filtered"}
    assert "full" not in {cell.arm for cell in trainer.called}


def test_skipped_and_diverged_cells_are_recorded(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study={"arms": ["full", "filtered"], "seeds": [0], "batch_sizes": [20, 58]})
    trainer = trained_by(lambda cell: None if cell.arm == "full" else 0.5)
    assert stage("train", tmp_path) == 0
    assert len(trainer.called) == 2
    rows = {(row["batch_size"], row["arm"]): row for row in _runs(data)}
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


def test_the_best_mean_over_seeds_is_handed_out(tmp_path: Path, trained_by: Trained) -> None:
    top1 = {("full", 0): 0.9, ("full", 1): 0.1, ("filtered", 0): 0.6, ("filtered", 1): 0.6}
    data = write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda cell: top1[cell.arm, cell.settings.seed])
    assert stage("train", tmp_path) == 0
    assert _first_name(data) == "filtered"


def test_the_next_best_stands_in_where_the_first_seed_diverged(tmp_path: Path, trained_by: Trained) -> None:
    top1 = {("full", 0): None, ("full", 1): 0.9, ("filtered", 0): 0.5, ("filtered", 1): 0.5}
    data = write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda cell: top1[cell.arm, cell.settings.seed])
    assert stage("train", tmp_path) == 0
    assert _first_name(data) == "filtered"


def test_a_study_of_which_nothing_finished_says_so(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda cell: None)
    assert stage("train", tmp_path) == 0
    assert data.trained_weights("tiny").read_bytes() == b""
    assert {row["status"] for row in _runs(data)} == {"diverged"}
    assert np.load(data.correct("tiny")).shape[0] == 4


def test_a_real_divergence_ends_the_cell_and_not_the_study(tmp_path: Path) -> None:
    """Also where the loss was still finite before the update that broke the weights."""
    study = {"arms": ["full"], "seeds": [0], "learning_rates": [1e30, 0.05], "budget": {"steps": 1}}
    data = write_project(tmp_path, study=study)
    assert stage("train", tmp_path) == 0
    rows = _runs(data)
    assert [(row["learning_rate"], row["status"]) for row in rows] == [(1e30, "diverged"), (0.05, "finished")]
    assert rows[0]["reason"] == "the loss stopped being finite"


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path, trained_by: Trained) -> None:
    data = write_project(tmp_path, study=FOUR_CELLS)
    gone = 4_194_305  # above any process id
    cells = WorkPaths(root=tmp_path / "work").cells
    left = [
        cells / f".k.{gone}.tmp" / "result.json",
        cells / f".k.weights.{gone}.tmp",
        data.runs("tiny").with_name(f".tiny.parquet.{gone}.tmp"),
        data.trained_weights("tiny").with_name(f".best.pt.{gone}.tmp"),
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_first_seed_keeps_its_weights_when_seeds_are_reordered(tmp_path: Path, trained_by: Trained) -> None:
    """A cell that finished without weights is trained once more where its weights are wanted."""
    data = write_project(tmp_path, study={"arms": ["full"], "seeds": [0, 1]})
    trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    write_project(tmp_path, study={"arms": ["full"], "seeds": [1, 0]})
    trainer = trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    assert [cell.settings.seed for cell in trainer.called] == [1]
    assert load_trained(data.trained_weights("tiny")).class_names[2] == "1"


def test_stale_settings_do_not_hide_behind_equal_names(tmp_path: Path, trained_by: Trained) -> None:
    write_project(tmp_path, study=FOUR_CELLS)
    trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    write_project(tmp_path, study=FOUR_CELLS, train={"label_smoothing": 0.1})
    trainer = trained_by(lambda cell: 0.5)
    assert stage("train", tmp_path) == 0
    assert [cell.settings for cell in trainer.called] == [
        replace(cell.settings, label_smoothing=0.1) for cell in trainer.called
    ]
    assert len(trainer.called) == 4
