"""benchmarks/label_noise at toy size, through the real processes."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from benchmarks.label_noise.__main__ import main
from benchmarks.label_noise.speed import from_two_lengths
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from tests.fixtures.iteration import write_project
from tests.fixtures.label_noise import forked_own_processes
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import run, write_imagenet_weights

# Each of many processes imports PyTorch or scikit-learn.
_TIMEOUT_S = 500
_TOY: dict[str, Any] = {"budget": {"steps": 30}, "batch_size": 16, "checkpoint": {"steps": 50}}
_CHEAP = ["--scorers", "self_confidence", "knn_vote", "--resamples", "20"]


def _command(folder: Path, *arguments: str) -> list[str]:
    places = {"--data": folder / "data", "--params": folder / "params.yaml", "--work": folder / "bench"}
    given = [str(part) for pair in places.items() for part in pair]
    return [sys.executable, "-m", "benchmarks.label_noise", *given, *arguments]


def _bench(folder: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Results by case, after a run that must succeed."""
    environ = forked_own_processes(folder / "site")
    done = run(_command(folder, *arguments), timeout=_TIMEOUT_S, environ=environ)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])["results"]
    return {result["case"]: result for result in printed}


def _stamps(work: Path) -> dict[Path, int]:
    """When each provenance file was written."""
    return {path: path.stat().st_mtime_ns for path in work.rglob("*provenance.json")}


def test_speed_is_that_of_the_steps_alone_however_fast_they_are() -> None:
    assert from_two_lengths(lambda steps: 100 + 0.5 * steps) == pytest.approx(0.5)
    assert from_two_lengths(lambda steps: 3 + 0.001 * steps) == pytest.approx(0.001)


@pytest.mark.slow
def test_bad_input_gets_one_line_and_exit_code_2(tmp_path: Path) -> None:
    write_project(tmp_path)
    done = run(_command(tmp_path, "--images", "12", *_CHEAP))
    assert done.returncode == 2
    assert done.stderr.startswith("error: finetune.batch_size: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--labels none.csv", "--labels"),
        ("--variants frozen", "--variants"),
        ("--weights a.pth", "--weights"),
        ("--weights a.pth --variants frozen", "--weights"),
        ("--seconds 0", "--seconds"),
        ("--summarize --seconds 3", "--summarize"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    named: str,
) -> None:
    write_project(tmp_path)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", _command(tmp_path, *_CHEAP, *arguments.split())[2:])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {named}: ")
    assert error.count("\n") == 1


def test_parameters_that_do_not_fit_a_case_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path)
    params, weights = tmp_path / "params.yaml", tmp_path / "w.pth"
    tree = YAML(typ="safe").load(params)
    del tree["filter"]["scorer"]
    YAML(typ="safe").dump(tree, params)
    weights.touch()
    arguments = ["--kinds", "symmetric", "--variants", "scratch", "frozen", "--weights", str(weights)]
    monkeypatch.setattr(sys, "argv", _command(tmp_path, *_CHEAP, *arguments)[2:])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "frozen-folds1: filter.scorer: " in capsys.readouterr().err
    assert not (tmp_path / "bench").exists()


@pytest.mark.slow
def test_cases_of_one_and_two_folds_run_once_and_are_summarized(tmp_path: Path) -> None:
    data, work = write_project(tmp_path, finetune=_TOY), tmp_path / "bench"
    arguments = ["--kinds", "symmetric", "--rates", "0.2", "--folds", "1", "2", "--images", "80", "--seconds", "1"]
    results = _bench(tmp_path, *arguments, *_CHEAP)
    names = [f"symmetric-0.2-scratch-folds{folds}" for folds in (1, 2)]
    assert list(results) == names
    each = json.loads((work / "plan.json").read_text())["seconds_per_step"]
    labels = []
    for folds, (name, result) in enumerate(results.items(), start=1):
        case = DataPaths(root=work / name / "data")
        assert result == json.loads((work / name / "results.json").read_text())
        assert (result["n"], result["n_wrong"], result["steps"]) == (80, 16, max(1, int(1 / folds / each)))
        assert np.unique(read_parquet(case.predictions(NETWORK))["fold"].to_numpy()).tolist() == list(range(folds))
        assert case.points(NETWORK).exists()
        assert list(result["advantage"]) == ["knn_vote"]
        labels.append(read_parquet(case.manifest("train"))["label"].to_pylist())
    assert labels[0] == labels[1]
    before = _stamps(work)
    assert len(before) == 8
    again = _bench(tmp_path, *arguments, "--scorers", "self_confidence")
    assert _stamps(work) == before
    assert list(again[names[0]]["scorers"]) == ["self_confidence"]
    other = run(_command(tmp_path, *arguments, *_CHEAP, "--seed", "1"))
    assert other.returncode == 2
    assert other.stderr.startswith(f"error: {work / 'plan.json'}: ")
    summary = run([sys.executable, "-m", "benchmarks.label_noise", "--work", str(work), "--summarize"])
    assert summary.returncode == 0, summary.stderr
    assert [case["case"] for case in json.loads((work / "summary.json").read_text())["cases"]] == names
    assert read_parquet(data.manifest("train")).num_rows == 120, "the prepared data stay as they are"


@pytest.mark.slow
def test_a_frozen_extractor_needs_no_plan_and_remakes_a_lost_stage(tmp_path: Path) -> None:
    write_project(tmp_path, finetune=_TOY)
    weights = write_imagenet_weights(tmp_path / "weights")
    annotated = tmp_path / "annotated.csv"
    rows = range(10, 13)
    annotated.write_text("path,label\n" + "".join(f"train/ash/{row}.png,birch\n" for row in rows))
    arguments = ["--labels", str(annotated), "--variants", "frozen", "--weights", str(weights), *_CHEAP]
    (result,) = _bench(tmp_path, *arguments).values()
    assert (result["n"], result["n_wrong"], result["steps"], result["epochs"]) == (120, 3, None, None)
    assert json.loads((tmp_path / "bench/plan.json").read_text())["seconds_per_step"] is None
    case = DataPaths(root=tmp_path / "bench/given-frozen-folds1/data")
    features, finetuned = case.features(NETWORK).read_bytes(), case.provenance("finetune", NETWORK).stat().st_mtime_ns
    shutil.rmtree(case.features(NETWORK).parent)
    (again,) = _bench(tmp_path, *arguments).values()
    assert case.features(NETWORK).read_bytes() == features
    assert case.provenance("finetune", NETWORK).stat().st_mtime_ns == finetuned
    measured = [{name: found["measures"] for name, found in one["scorers"].items()} for one in (result, again)]
    assert measured[0] == measured[1]
