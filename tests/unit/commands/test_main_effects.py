"""`main-effects` finds the factors of a design among trained studies, and their effects."""

import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

from pipeline.__main__ import main
from pipeline.artifacts.files import write_array
from pipeline.paths import DataPaths
from pipeline.stats.estimates import rounding_sd
from tests.fixtures.experiments import Change, edit_record, run_rows, state_planted, write_experiment
from tests.fixtures.golden import check_golden
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.records import record

# Warm-up, optimizer with its rate, and smoothing, which is their product: study -> its levels.
_DESIGN = {
    f"study_{i}": (warmup, optimizer, warmup * optimizer)
    for i, (warmup, optimizer) in enumerate(itertools.product((-1, 1), repeat=2))
}
_SEEDS = (0, 1, 2)


def _recipe(warmup: int, optimizer: int, smoothing: int) -> dict[str, Any]:
    lars = {"name": "lars", "momentum": 0.9, "trust_coefficient": 0.001}
    return {
        "schedule": {"name": "cosine", "warmup": {"epochs": 0.0 if warmup < 0 else 5.0, "steps": None}},
        "optimizer": {"name": "sgd", "momentum": 0.9} if optimizer < 0 else lars,
        "label_smoothing": 0.1 if smoothing < 0 else 0.0,
        "workers": 1 + (warmup > 0),  # as the next, changes no result
        "timeout_seconds": 300.0 + 600 * (warmup > 0 and optimizer > 0),
    }


def _write(
    data: Path,
    *,
    seeds: Sequence[int] = _SEEDS,
    change: Change = lambda row: {},
    recipe: Callable[[int, int, int], dict[str, Any]] = _recipe,
) -> Path:
    rows = {}
    for i, (study, (warmup, optimizer, _)) in enumerate(_DESIGN.items()):
        noise = np.random.default_rng(i).normal(0, 1e-3, len(seeds))
        made = run_rows(arms=["full"], batch_sizes=[32], seeds=seeds)
        for row, error in zip(made, noise, strict=True):
            row |= {"learning_rate": 0.1 if optimizer < 0 else 2.0}
            row |= {"top1": round(0.5 + 0.01 * warmup + 0.02 * row["seed"] + float(error), 4)}
            row |= change({"study": study, **row})
        rows[study] = made
    write_experiment(data, rows)
    for study, levels in _DESIGN.items():
        rate = 0.1 if levels[1] < 0 else 2.0
        parameters = {
            "train": recipe(*levels),
            "study": {"arms": ["full"], "learning_rates": [rate], "plan": study, "match": study},
        }
        _record_parameters(DataPaths(root=data).provenance("train", study), parameters)
    state_planted(data, None)
    return data


def _record_parameters(path: Path, parameters: Mapping[str, Any]) -> None:
    edit_record(path, lambda content: content.update(parameters=parameters))


def _command(data: Path, *studies: str) -> list[str]:
    return ["main-effects", *(studies or _DESIGN), "--data", str(data)]


def _error(capsys: pytest.CaptureFixture[str]) -> str:
    return str(printed_error(capsys.readouterr().err))


def test_factors_and_effects_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_command(_write(tmp_path)), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["seeds"], result["left_out"], result["n_planted"]) == ([0, 1, 2], [], None)
    effects = {tuple(effect["keys"]): effect for effect in result["effects"]}
    # Processes change no result, and the plan is no setting.
    assert list(effects) == [
        ("optimizer.name", "learning_rates", "optimizer.trust_coefficient"),
        ("label_smoothing",),
        ("schedule.warmup.epochs",),
    ]
    warmup = effects["schedule.warmup.epochs",]
    assert (warmup["low"], warmup["high"]) == ("0.0", "5.0")
    low, high = warmup["interval"]
    assert low < 2.0 < high < low + 0.4
    assert warmup["p_holm"] < 0.01
    low, high = effects["label_smoothing",]["interval"]
    assert low < 0 < high
    assert effects["label_smoothing",]["aliases"] == ["optimizer.name × schedule.warmup.epochs"]


def test_the_text_is_the_golden_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _write(tmp_path, seeds=(0, 1, 2, 3), change=_diverged)
    state_planted(data, 2)
    assert main(_command(data)) == 0
    check_golden("main_effects.txt", capsys.readouterr().out)


def _diverged(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": "diverged", "top1": None} if (row["study"], row["seed"]) == ("study_2", 3) else {}


def test_a_seed_that_a_study_did_not_finish_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for seeds, change in (((0, 1, 2, 3), _diverged), (_SEEDS, lambda row: {})):
        assert main([*_command(_write(tmp_path / str(len(seeds)), seeds=seeds, change=change)), "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0]["left_out"] == ["study_2, seed 3: diverged"]
    assert results[0]["seeds"] == results[1]["seeds"]
    assert results[0]["effects"] == results[1]["effects"]


def test_equal_accuracies_are_uncertain_by_their_rounding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _write(tmp_path, change=lambda row: {"top1": 0.5})
    assert main([*_command(data), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    # Of 10,000 images, in percentage points; (3 - 1) (4 - 1) degrees of freedom.
    half = 100 * 2 * rounding_sd(1e-4) / 12**0.5 * scipy.stats.t.ppf(0.975, 6)
    assert [effect["interval"] for effect in result["effects"]] == [pytest.approx([-half, half])] * 3


@pytest.mark.parametrize(
    ("studies", "words"),
    [
        (["study_0"], "one study, study_0, has no factor"),
        (["study_0", "study_0"], "one study, study_0, has no factor"),
        (["study_0", "study_1", "study_2"], "2 times and"),
        (["study_0", "unknown"], "unknown.parquet: missing; give trained studies"),
    ],
)
def test_studies_that_are_no_design_are_refused(
    studies: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command(_write(tmp_path), *studies)) == 2
    assert words in _error(capsys)


def test_a_setting_of_three_values_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def recipe(*levels: int) -> dict[str, Any]:
        return {**_recipe(*levels), "label_smoothing": 0.1 * (levels[0] + levels[1])}

    assert main(_command(_write(tmp_path, recipe=recipe))) == 2
    assert "label_smoothing has 3 values, -0.2, 0.0, 0.2" in _error(capsys)


def test_equal_studies_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _write(tmp_path)
    paths = DataPaths(root=data)
    shutil.copy(paths.runs("study_0"), paths.runs("again"))
    shutil.copy(paths.correct("study_0"), paths.correct("again"))
    written = paths.provenance("train", "study_0").read_text()
    paths.provenance("train", "again").write_text(written.replace("study_0", "again"))
    assert main(_command(data, *_DESIGN, "again")) == 2
    assert "study_0 and again have equal settings; give one of them" in _error(capsys)


def test_studies_of_other_images_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _write(tmp_path)
    edited = DataPaths(root=data).provenance("train", "study_3")
    content = json.loads(edited.read_text())
    content["inputs"] = dict.fromkeys(content["inputs"], "0" * 64)
    edited.write_text(json.dumps(content))
    assert main(_command(data)) == 2
    assert "study_3 was trained on other images than study_0" in _error(capsys)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 64}, "runs of 2 settings"),
        ({"top1": 7.0}, "a run with top1 7.0"),
        ({"top1": float("nan")}, "a run with top1 nan"),
        ({"seed": 0}, "has a seed twice"),
    ],
)
def test_runs_that_no_study_has_are_refused(
    change: Mapping[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _write(tmp_path, change=lambda row: dict(change) if row["seed"] == 1 else {})
    assert main(_command(data)) == 2
    assert words in _error(capsys)


@pytest.mark.parametrize("parameters", [{}, {"train": [], "study": {}}, {"train": {}, "study": None}])
def test_a_record_without_parameters_is_refused(
    parameters: Mapping[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _write(tmp_path)
    edited = DataPaths(root=data).provenance("train", "study_1")
    edited.write_text(json.dumps(json.loads(edited.read_text()) | {"parameters": parameters}))
    assert main(_command(data)) == 2
    assert "holds no parameters of a training" in _error(capsys)


def test_names_of_a_record_do_not_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _write(tmp_path, recipe=lambda *levels: {**_recipe(*levels), "\x1b[2J": "\n\x1b[1A" + str(levels[0])})
    assert main(_command(data)) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("n_images", [0, 7])
def test_studies_of_other_numbers_of_test_images_are_refused(
    n_images: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _write(tmp_path)
    write_array(DataPaths(root=data).correct("study_1"), np.zeros((3, n_images), dtype=np.bool_))
    for study in _DESIGN:
        record(DataPaths(root=data), "train", study)
    assert main(_command(data)) == 2
    assert f"has {n_images} test images, and study_0 has 10000; run" in _error(capsys)


def test_a_long_level_is_cut_and_keeps_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "weights_" + "x" * 60
    data = _write(tmp_path, recipe=lambda *levels: {**_recipe(*levels), "a": long if levels[0] > 0 else "short"})
    assert main(_command(data)) == 0
    assert f"short  {long[:36]} ...  " in capsys.readouterr().out


def test_one_seed_has_no_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_command(_write(tmp_path, seeds=(0,)))) == 2
    assert "1 seed finished in all studies" in _error(capsys)


def test_a_changed_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _write(tmp_path)
    _write(tmp_path / "other", seeds=(4, 5))
    DataPaths(root=tmp_path / "other").runs("study_1").replace(DataPaths(root=data).runs("study_1"))
    assert main(_command(data)) == 2
    assert "is not what train@study_1 wrote" in _error(capsys)
