"""A study as a user runs it, in separate processes: its files, and what a kill leaves."""

import itertools
import json
import math
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from pipeline.paths import DataPaths, WorkPaths
from pipeline.runs.study_tables import HISTORY_SCHEMA, RUNS_SCHEMA
from pipeline.stages import train as train_stage
from pipeline.training.weights import load_trained
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.process_tree import alive, descendants
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import (
    bright_images,
    command,
    files_below,
    kill,
    run,
    runs_of,
    stage,
    start,
    wait_until,
    write_kept,
    write_project,
)

FOUR_CELLS: dict[str, Any] = {"arms": ["full", "filtered"], "seeds": [0, 1]}
# Quick, and long enough for a kill.
STEPS = 40
QUICK: dict[str, Any] = {
    **FOUR_CELLS,
    "models": ["small_cnn"],
    "budget": {"steps": STEPS},
    "accuracy_every": {"steps": 16},
}
TWO_WORKERS = {"workers": 2, "simulated_workers": 2}


def _outputs(data: DataPaths) -> dict[str, bytes]:
    """Return all files of the stage; the path of the project is removed from the provenance."""
    files = sorted(path for path in (data.root / "train").rglob("*") if path.is_file())
    return {
        str(path.relative_to(data.root)): path.read_bytes().replace(str(data.root.parent).encode(), b"")
        for path in files
    }


def _entries(folder: Path) -> list[Path]:
    """Return the finished runs in the ledger."""
    entries = WorkPaths(root=folder / "work").ledger
    return sorted(path for path in entries.glob("[0-9a-f]*")) if entries.exists() else []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose study a separate process has trained without interruption."""
    folder = tmp_path_factory.mktemp("finished")
    write_project(folder, study=QUICK)
    done = run(command("train", folder))
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stderr)
    return folder


def test_a_pipe_gets_one_line_for_each_run(finished: Path) -> None:
    lines = (finished / "printed").read_text().splitlines()
    runs = [line for line in lines if " run " in line or "seed" in line]
    wheres = ["run 1 of 4, about", "run 2 of 4, about", "run 3 of 4, about", "run 4 of 4; "]
    assert [line.startswith(f"train@tiny: {where}") for line, where in zip(runs, wheres, strict=True)] == [True] * 4
    assert all(", seed " in line and ": top-1 0." in line for line in runs)
    assert "; small_cnn, full, batch 20, seed 0: " in runs[0]
    assert "; small_cnn, filtered of resnet18, batch 20, seed 0: " in runs[1]


def test_the_table_has_a_row_for_each_run(finished: Path) -> None:
    data = DataPaths(root=finished / "data")
    assert pyarrow.parquet.read_schema(data.runs("tiny")).names == RUNS_SCHEMA.names
    rows = runs_of(data)
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
    rows = runs_of(data)
    correct = np.load(data.correct("tiny"))
    assert correct.shape == (4, 22)
    assert correct.mean(1) == pytest.approx([row["top1"] for row in rows])
    history = pyarrow.parquet.read_table(data.history("tiny"))
    assert history.schema.names == HISTORY_SCHEMA.names
    assert set(history["fingerprint"].to_pylist()) == {row["fingerprint"] for row in rows}
    measured = [record for record in history.to_pylist() if record["top1"] is not None]
    assert [record["step"] for record in measured] == 4 * [16, 32]
    assert all(0 < record["test_loss"] < math.inf for record in measured)
    means = {arm: np.mean([row["top1"] for row in rows if row["arm"] == arm]) for arm in ("full", "filtered")}
    metrics = json.loads(data.train_metrics("tiny").read_text())
    assert metrics == pytest.approx({f"small_cnn {arm} batch 20 lr 0.05 wd 0.0005": means[arm] for arm in means})


def test_the_published_network_is_the_first_seed_of_the_best_arm(finished: Path) -> None:
    data = DataPaths(root=finished / "data")
    rows, correct = runs_of(data), np.load(data.correct("tiny"))
    means = {arm: np.mean([row["top1"] for row in rows if row["arm"] == arm]) for arm in ("full", "filtered")}
    best = max(means, key=lambda arm: means[arm])
    (row,) = [i for i, row in enumerate(rows) if row["arm"] == best and row["seed"] == 0]
    images, labels = bright_images(22, seed=1)
    network = load_trained(data.trained_weights("tiny"))
    names = [network.class_names[label] for label in labels]
    assert [a == b for a, b in zip(network.predict(images), names, strict=True)] == correct[row].tolist()


def test_no_wall_time_or_path_is_in_the_artifacts(finished: Path) -> None:
    seconds = json.loads((_entries(finished)[0] / "timing.json").read_text())["seconds"]
    for name, content in _outputs(DataPaths(root=finished / "data")).items():
        assert str(seconds).encode() not in content, name
        assert str(Path.cwd()).encode() not in content, name


def test_a_second_run_trains_nothing(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _outputs(DataPaths(root=finished / "data"))

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a finished run is trained again")

    monkeypatch.setattr(train_stage, "execute_run", fail)
    assert stage("train", finished) == 0
    assert _outputs(DataPaths(root=finished / "data")) == before


# See also test_kills_inside_a_checkpoint_and_an_entry_of_the_ledger.
@pytest.mark.slow
def test_a_killed_study_ends_in_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    data = write_project(tmp_path, study=QUICK)
    process = start(command("train", tmp_path))
    try:
        wait_until(lambda: _entries(tmp_path), process)
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


@pytest.mark.slow
def test_two_workers_by_torchrun_of_the_stage(tmp_path: Path) -> None:
    one_run = {"models": ["small_cnn"], "arms": ["full"], "seeds": [0]}
    data = write_project(tmp_path, study=one_run, train=TWO_WORKERS)
    done = run(command("train", tmp_path))
    assert done.returncode == 0, done.stderr
    (row,) = runs_of(data)
    assert (row["status"], row["workers"], row["simulated_workers"], row["bn_group"]) == ("finished", 2, 2, 10)
    assert np.load(data.correct("tiny")).mean() == pytest.approx(row["top1"])
    assert load_trained(data.trained_weights("tiny")).network == "small_cnn"
    record = json.loads((tmp_path / "work/resources/train@tiny.json").read_text())
    assert set(record["joules"]) == {"gpu", "cpu", "memory"}
    # Both ranks record that they use no GPU.
    assert torch.cuda.is_available() or record["joules"]["gpu"] == record["arms_joules"]["full"]["gpu"] == 0.0


@pytest.mark.slow
def test_an_error_of_all_ranks_is_printed_once(tmp_path: Path) -> None:
    data = write_project(tmp_path, train=TWO_WORKERS)
    write_kept(data, np.arange(70) >= 60)
    done = run(command("train", tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert printed_error(done.stderr).key == str(data.kept(NETWORK))


@pytest.mark.slow
def test_one_study_at_a_time_and_no_orphans(tmp_path: Path) -> None:
    long = {"arms": ["full"], "seeds": [0], "budget": {"steps": 100_000}}
    data = write_project(tmp_path, study=long, train=TWO_WORKERS)
    lock = WorkPaths(root=tmp_path / "work").lock("train")
    process, ranks = start(command("train", tmp_path)), set[int]()
    try:
        wait_until(lambda: lock.exists() and lock.read_text(), process)
        holder = int(lock.read_text())
        ranks = descendants(process.pid)
        assert holder in ranks
        assert len(alive(ranks)) == 2
        # Only the first rank finds the lock; the other rank prints no traceback.
        second = run(command("train", tmp_path))
        assert second.returncode == 2
        assert second.stderr.count("\n") == 1
        error = printed_error(second.stderr)
        assert error.key == "train of any study, or runs import"
        assert f" {holder};" in str(error)
        process.kill()
        end = time.monotonic() + 20
        while alive(ranks):
            assert time.monotonic() < end, f"still running: {alive(ranks)}"
            time.sleep(0.1)
    finally:
        kill(process, *ranks)
    assert not data.runs("tiny").exists()


@pytest.mark.slow
def test_ctrl_c_saves_a_run_of_two_workers(tmp_path: Path) -> None:
    long = {"arms": ["full"], "seeds": [0], "budget": {"steps": 100_000}}
    write_project(tmp_path, study=long, train={**TWO_WORKERS, "checkpoint": {"steps": 3}})
    work = WorkPaths(root=tmp_path / "work")
    process, ranks = start(command("train", tmp_path)), set[int]()
    try:
        wait_until(lambda: files_below(work.root, "step-*.pt"), process)
        ranks = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        kill(process, *ranks)
    assert process.returncode == 75, err
    _, line = err.splitlines()  # after the plan of the study
    stopped = re.fullmatch(r"terminated: stopped after step (\d+), which is saved; .*resume", line)
    assert stopped, err
    assert files_below(work.root, f"step-{int(stopped[1]):09}.*.pt")
    assert not alive(ranks)


@pytest.mark.slow
def test_ctrl_c_while_two_workers_start_is_one_line(tmp_path: Path) -> None:
    """Whether they had begun to train or not."""
    write_project(tmp_path, study={"arms": ["full"], "seeds": [0], "budget": {"steps": 100_000}}, train=TWO_WORKERS)
    lock = WorkPaths(root=tmp_path / "work").lock("train")
    process, ranks = start(command("train", tmp_path)), set[int]()
    try:
        wait_until(lambda: lock.exists() and lock.read_text(), process)
        ranks = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        kill(process, *ranks)
    line = err.splitlines()[-1]
    assert (process.returncode, line.split()[0]) in ((130, "interrupted;"), (75, "terminated:")), err
    assert line.endswith("run the same command again to resume")
    assert "Traceback" not in err
    assert not alive(ranks)


def test_a_real_divergence_ends_the_run_and_not_the_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The loss may be finite before the update that makes the weights infinite."""
    study = {"arms": ["full"], "seeds": [0], "learning_rates": [1e30, 0.05], "budget": {"steps": 1}}
    data = write_project(tmp_path, study=study)
    assert stage("train", tmp_path) == 0
    rows = runs_of(data)
    assert [(row["learning_rate"], row["status"]) for row in rows] == [(1e30, "diverged"), (0.05, "finished")]
    assert rows[0]["reason"] == "the loss stopped being finite"
    said = capfd.readouterr().err
    assert said.count("the loss is not finite") == 1
    assert "run 1 of 2: the loss is not finite on the test images, after the last step\n" in said


def test_a_study_whose_batch_grows(tmp_path: Path) -> None:
    """From params.yaml to the tables: with 60 images per epoch, 3 steps of 10 images, and then batches of 20."""
    grows = {
        "batch_schedule": {"stages": [{"share": 0.5, "until": {"epochs": 0.5}}], "lr_scaling": "linear"},
        "schedule": {"name": "constant", "warmup": {"epochs": 0.75}, "warmup_start_factor": "reference"},
        "lr_scaling": {"rule": "linear", "reference_batch_size": 10},
    }
    study = {"arms": ["full"], "seeds": [0], "budget": {"epochs": 1.5}, "accuracy_every": {"epochs": 1}}
    data = write_project(tmp_path, study={**study, "recipe": grows})
    assert stage("train", tmp_path) == 0
    (row,) = runs_of(data)
    assert (row["batch_size"], row["steps"], row["examples"], row["epochs"]) == (20, 6, 90, 1.5)
    assert (row["peak_learning_rate"], row["warmup_steps"]) == (0.1, 4)
    history = pyarrow.parquet.read_table(data.history("tiny")).to_pylist()
    assert [(record["step"], record["examples"]) for record in history] == [
        (1, 10), (2, 20), (3, 30), (4, 50), (5, 70), (6, 90),
    ]  # fmt: skip
    # Half of a rate that rises from the one of the reference batch over 50 images, then the full rate.
    assert [record["lr"] for record in history] == pytest.approx([0.025, 0.03, 0.035, 0.08, 0.1, 0.1])
    assert [record["step"] for record in history if record["top1"] is not None] == [5]
