"""The command on a tiny study: after a brief training, and at kept weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.noise_scale import main
from pipeline.errors import InputError
from tests.fixtures.projects import folder_arguments
from tests.fixtures.training import stage, write_project

_STUDY: dict[str, Any] = {"models": ["small_cnn"], "seeds": [0], "equivalent_batch": {"gradient_scale": 0.5}}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noise-scale")
    write_project(folder, study=_STUDY)
    return folder


def _measured(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    assert main(["--study", "tiny", "--json", "--parts", "4", *more, *folder_arguments(folder)]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_after_a_few_steps_the_other_half_is_measured_repeatably(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = _measured(project, capsys, "--steps", "2")
    assert (row["batch_size"], row["steps"], row["predicted"]) == (20, 2, 4)
    # Of 60 images; the filter drops every tenth.
    assert 16 <= row["n_filtered"] <= row["n_full"] <= 44
    assert row["ratio"]["ratio"] is None or row["ratio"]["ratio"] > 0
    assert _measured(project, capsys, "--steps", "2") == [row]
    (other,) = _measured(project, capsys, "--steps", "2", "--seed", "1")
    assert other["ratio"] != row["ratio"]


def test_the_text_says_what_was_measured(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--study", "tiny", "--parts", "4", "--steps", "2", *folder_arguments(project)]) == 0
    heads, values, *notes = capsys.readouterr().out.splitlines()
    assert heads.split()[0] == "batch"
    assert values.split()[0] == "20"
    assert notes[-1].endswith("law: 1/s^2")


def test_out_of_memory_names_the_images_of_a_pass(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object, batch_size: int, **__: object) -> None:
        raise MemoryError if batch_size == 7 else AssertionError(batch_size)

    monkeypatch.setattr("pipeline.commands.noise_scale.measure_parts", measure)
    with pytest.raises(SystemExit) as ended:
        main(["--study", "tiny", "--steps", "1", "--parts", "4", "--micro-batch", "7", *folder_arguments(project)])
    assert ended.value.code == 2
    assert "--micro-batch 7: a pass of 7 images does not fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--steps", "0"], "--steps 0: too small"),
        (["--parts", "50", "--steps", "1"], "--parts 50: there are"),
        (["--micro-batch", "0", "--steps", "1"], "--micro-batch 0: too small"),
        ([], "run `dvc repro"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exits_with_2(
    arguments: list[str], says: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        with pytest.raises(SystemExit) as ended:
            main(["--study", "tiny", *arguments, *folder_arguments(project)])
        assert ended.value.code == 2
        message = capsys.readouterr().err
    except InputError as error:
        message = str(error)
    assert says in message


@pytest.mark.slow
def test_kept_weights_of_the_full_arm_are_measured_on_all_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path, study={**_STUDY, "seeds": [0, 1], "batch_sizes": [20, 24]})
    assert stage("train", tmp_path) == 0
    capsys.readouterr()
    rows = _measured(tmp_path, capsys)
    assert [(row["batch_size"], row["seed"]) for row in rows] == [(20, 0), (24, 0)]
    assert {(row["n_full"], row["n_filtered"]) for row in rows} == {(60, 52)}
