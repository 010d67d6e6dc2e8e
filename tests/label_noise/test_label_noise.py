"""benchmarks/label_noise at toy size, through the real process."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_training import NAMES, run, write_project

from benchmarks.label_noise.planning import seconds_per_step

# Each of many processes imports PyTorch or scikit-learn.
_TIMEOUT_S = 280
_REDUCE: dict[str, Any] = {
    "pca": {"n_components": 8},
    "tsne": {"perplexity": 5.0, "n_iter": 20, "early_exaggeration_iter": 20, "n_jobs": 1},
    "neighbors": 5,
}


def _command(folder: Path, *arguments: str) -> list[str]:
    places = {"--data": folder / "data", "--params": folder / "params.yaml", "--work": folder / "work"}
    given = [str(part) for pair in places.items() for part in pair]
    return [sys.executable, "-m", "benchmarks.label_noise", *given, "--resamples", "20", *arguments]


def test_speed_is_that_of_the_steps_alone_however_fast_they_are() -> None:
    assert seconds_per_step(lambda steps: 100 + 0.5 * steps) == pytest.approx(0.5)
    assert seconds_per_step(lambda steps: 3 + 0.001 * steps) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--images", "10"], "error: finetune.batch_size: 20 is more than the 10 images; give more --images"),
        (["--labels", "none.csv"], "error: --labels: none.csv does not exist; give a CSV with the columns path,label"),
    ],
    ids=["few images", "no file"],
)
def test_bad_input_gets_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    write_project(tmp_path, reduce=_REDUCE)
    done = run(_command(tmp_path, *arguments))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [expected]


@pytest.mark.slow
def test_from_a_prepared_folder_to_a_table_and_the_second_time_without_training(tmp_path: Path) -> None:
    write_project(tmp_path, reduce=_REDUCE, finetune={"weights": "none"})
    arguments = ["--kinds", "instance", "--rates", "0.2", "--seconds", "0.5"]
    done = run(_command(tmp_path, *arguments, "--scorers", "self_confidence", "dbscan"), timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plan: ")
    printed = json.loads(done.stdout.splitlines()[-1])
    steps = json.loads((tmp_path / "work/plan.json").read_text())["steps"]
    (result,) = printed["results"]
    folder = tmp_path / "work/instance-0.2"
    assert result == json.loads((folder / "results.json").read_text())
    assert (result["case"], result["steps"], result["n"], result["n_wrong"]) == (folder.name, steps, 60, 12)
    labels, probabilities = np.load(folder / "labels.npy"), np.load(folder / "probabilities.npy")
    assert (labels != np.load(folder / "truth.npy")).sum() == 12
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert probabilities.shape == (60, len(NAMES))
    assert np.load(folder / "features.npy").shape[0] == 60 == len(np.load(folder / "map.npy"))
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.npy")}
    again = run(_command(tmp_path, *arguments, "--scorers", "self_confidence"), timeout=_TIMEOUT_S)
    assert again.returncode == 0, again.stderr
    assert f"plan: {steps} steps for every case, as " in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.npy")} == trained
    other = run(_command(tmp_path, *arguments, "--seed", "1"))
    assert other.returncode == 2
    assert "plan.json: is of another seed; choose another --work" in other.stderr


@pytest.mark.slow
def test_a_case_that_lost_its_last_files_makes_them_alike_from_its_network(tmp_path: Path) -> None:
    write_project(tmp_path, reduce=_REDUCE, finetune={"weights": "none"})
    annotated = tmp_path / "annotated.csv"
    annotated.write_text("path,label\n" + "".join(f"train/ash/{row:05}.png,birch\n" for row in (0, 4, 8)))
    arguments = ["--labels", str(annotated), "--seconds", "0.2", "--scorers", "self_confidence"]
    assert run(_command(tmp_path, *arguments), timeout=_TIMEOUT_S).returncode == 0
    folder = tmp_path / "work/given"
    labels, truth = (np.load(folder / f"{name}.npy") for name in ("labels", "truth"))
    np.testing.assert_array_equal(np.flatnonzero(labels != truth), [0, 4, 8])
    kept = {name: (folder / name).read_bytes() for name in ("labels.npy", "probabilities.npy", "map.npy")}
    network = (folder / "network.pt").stat().st_mtime_ns
    (folder / "finished.json").unlink()
    (folder / "probabilities.npy").unlink()
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    assert run(_command(tmp_path, *arguments), timeout=_TIMEOUT_S).returncode == 0
    assert {name: (folder / name).read_bytes() for name in kept} == kept
    assert (folder / "network.pt").stat().st_mtime_ns == network
