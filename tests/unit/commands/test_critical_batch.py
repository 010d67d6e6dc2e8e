"""The command on a tiny study with images flagged `val`."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.critical_batch import main
from tests.fixtures.projects import folder_arguments
from tests.fixtures.tuning import write_search

_BRIEF = ("--study", "tiny", "--after", "2", "--images", "30", "--factors", "2")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("critical-batch") / "project"
    write_search(folder, train={"simulated_workers": 2, "noise_scale_steps": 1})
    return folder


def test_branches_of_all_seeds_are_compared(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*_BRIEF, "--json", *folder_arguments(project)]) == 0
    printed = capsys.readouterr()
    result: dict[str, Any] = json.loads(printed.out)
    names = ("16, seed 0", "16, seed 1", "32, seed 0", "32, seed 1")
    lines = [line for line in printed.err.splitlines() if "seed" in line]
    for number, (line, name) in enumerate(zip(lines, names, strict=True), start=1):
        assert line.startswith(f"run {number} of 4")
        assert f"; batch {name}: loss " in line
    assert [branch["batch_size"] for branch in result["branches"]] == [16, 32]
    assert result["images"] == 32
    assert result["seeds"] == [0, 1]
    assert len(result["noise_scale"]) == 2
    assert 0 < result["n_val"] < 60
    assert result["branches"][1]["excess"]["n"] == 2
    assert main([*_BRIEF, *folder_arguments(project)]) == 0
    heads, small, large, found, note = capsys.readouterr().out.splitlines()
    assert heads.split()[:3] == ["batch", "loss", "excess"]
    assert (small.split()[0], large.split()[0]) == ("16", "32")
    assert found.startswith("critical batch size after 2 steps: ")
    assert "2 seeds, 32 images a branch" in note


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--factors", "0"), "--factors 0: too small"),
        (("--factors", "64"), "--factors 64: a batch of 1024 is larger than the"),
        (("--after", "0"), "--after 0: too small"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: tuple[str, ...], says: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*_BRIEF, *arguments, *folder_arguments(project)])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
