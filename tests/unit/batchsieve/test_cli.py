"""The command `batchsieve`: help, dispatch, version, completion, and `find-issues` on files."""

import csv
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import viz.__main__
from batchsieve import find_issues, find_issues_command
from batchsieve.cli import GROUPS, commands, main, parser_of
from batchsieve.completion import full_parser
from pipeline.__main__ import COMMANDS
from pipeline.__main__ import main as pipeline_main
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.progress import progress_of, show_every_update
from tests.fixtures.projects import ROOT, class_blobs

_SCRIPT = Path(sys.executable).parent / "batchsieve"
_NAMES = [name for name, _, _ in commands()]


def _help(run: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


def _started(*arguments: str, python: str = sys.executable) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [python, "-m", "batchsieve", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_command_is_in_one_group() -> None:
    assert len(set(_NAMES)) == len(_NAMES)
    assert set(_NAMES) == {*COMMANDS, *viz.__main__.COMMANDS, "viz", "find-issues", "look", "completion"}


def test_help_shows_the_groups_with_a_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _help(main, ["--help"], capsys)
    for title, names in GROUPS.items():
        block = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == names
        assert all(len(line.split()) > 2 for line in block.splitlines())


@pytest.mark.parametrize(("place", "command"), [(ROOT, "make repro"), (None, "dvc repro")])
def test_help_ends_with_what_runs_the_stages_there(
    place: Path | None,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place or tmp_path)
    assert _help(main, ["--help"], capsys).endswith(f"; {command} runs the stages.\n")


def test_help_of_a_command_is_that_of_the_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("validate", "preset", "compare"):
        assert _help(main, [command, "--help"], capsys) == _help(pipeline_main, [command, "--help"], capsys)


@pytest.mark.parametrize("command", ["validate", "viz", "figure"])
def test_help_has_the_name_of_the_program_that_was_called(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/batchsieve", command, "--help"])
    text = _help(main, [command, "--help"], capsys)
    assert f"usage: batchsieve {command} " in text
    assert "python -m" not in text


@pytest.mark.parametrize("name", ["page.html", "page.HTM"])
def test_force_is_refused_for_a_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", name, "--force"]) == 2
    assert printed_error(capsys.readouterr().err).key == "--force"


@pytest.mark.parametrize(("name", "module"), [(name, module) for name, module, _ in commands()])
def test_every_command_has_a_parser_of_its_name(name: str, module: str) -> None:
    assert callable(import_module(module).main)
    assert parser_of(module).prog.endswith(f" {name}")


def test_shared_options_have_the_same_defaults_everywhere() -> None:
    defaults = {"params": "params.yaml", "data": "data", "work": ".work"}
    for _, module, _ in commands():
        for action in parser_of(module)._actions:
            if action.dest in defaults:
                assert action.default == Path(defaults[action.dest]), module


def test_commands_share_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--params", str(ROOT / "presets/paper.yaml"), "--data", str(ROOT / "data")]) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "page.txt")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["validate", "--nonsense"]])
def test_wrong_command_line_has_code_2_in_batchsieve(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


def test_the_script_of_the_package_is_this_command() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, function = scripts["batchsieve"].partition(":")
    assert getattr(import_module(module), function) is main


def test_as_a_module_it_prints_its_version_and_runs_commands() -> None:
    version = _started("--version")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert (version.returncode, version.stdout, version.stderr) == (0, f"batchsieve {declared}\n", "")
    answer = _started("validate", "--params", "presets/paper.yaml")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "valid" in answer.stdout


@pytest.mark.skipif(not _SCRIPT.is_file(), reason="installed before the package had the command; run `make setup`")
def test_the_installed_script_runs_commands(tmp_path: Path) -> None:
    files = [*_files(tmp_path), "--out", str(tmp_path / "issues.csv")]
    answer = subprocess.run([_SCRIPT, *files], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert (tmp_path / "issues.csv").is_file()
    missing = subprocess.run([_SCRIPT, "validate"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)


def test_help_starts_without_any_library() -> None:
    answer = subprocess.run(
        [sys.executable, "-S", "-m", "batchsieve", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "find-issues" in answer.stdout


def test_completion_knows_commands_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for name in _NAMES:
        assert name in script
    for option in ("--pred-probs", "--study", "--price-per-gpu-hour", "--params"):
        assert option in script
    assert {"pack", "import"} <= set(re.findall(r"\w+", script))
    if shutil.which("bash"):
        read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert read.returncode == 0, read.stderr


def test_completion_parses_what_the_commands_parse() -> None:
    parsed = full_parser().parse_args(["find-issues", "--labels", "y.npy", "--out", "i.csv"])
    assert (parsed.labels, parsed.out) == (Path("y.npy"), Path("i.csv"))


@pytest.mark.parametrize("page", ["README.md", "docs/reference/api.md"])
def test_documented_batchsieve_commands_and_flags_exist(page: str) -> None:
    modules = {name: module for name, module, _ in commands()}
    for name, rest in re.findall(r"^batchsieve ([a-z][a-z-]+)(.*)$", (ROOT / page).read_text(), flags=re.MULTILINE):
        known = {option for action in parser_of(modules[name])._actions for option in action.option_strings}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, f"{page}: batchsieve {name}"


def _files(folder: Path) -> list[str]:
    features, labels = class_blobs(np.random.default_rng(0), n_classes=2, per_class=30, dimensions=5)
    labels[0] = 1 - labels[0]
    np.save(folder / "y.npy", np.array(["=a", "b"])[labels])
    np.save(folder / "f.npy", 10 * features)
    return ["find-issues", "--labels", str(folder / "y.npy"), "--features", str(folder / "f.npy")]


def test_find_issues_command_writes_the_most_suspect_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "issues.csv"
    assert main([*_files(tmp_path), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: LabelIssues(1 of 60 samples, scorer='label_odds')\n"
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    suggestion = ("suggested_label", "suggested_probability")
    assert list(rows[0]) == ["sample", "label", "score", "is_issue", *suggestion, "reason"]
    assert (rows[0]["sample"], rows[0]["is_issue"], len(rows)) == ("0", "true", 60)
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)


def test_find_issues_command_shows_its_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_every_update(monkeypatch)
    assert main([*_files(tmp_path), "--out", str(tmp_path / "issues.csv")]) == 0
    assert progress_of(capsys.readouterr().err) == {
        "nearest neighbors": [(60, 60, "samples")],
        "class probabilities": [(done, 5, "folds") for done in range(1, 6)],
    }
    features, labels = np.load(tmp_path / "f.npy"), np.load(tmp_path / "y.npy")
    find_issues(labels, features=features)
    assert capsys.readouterr().err == ""


def test_find_issues_command_warns_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.array(["a\x1b", "b"] * 30)
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "p.npy", np.eye(2)[np.arange(60) % 2][:, ::-1])
    options = ["--labels", str(tmp_path / "y.npy"), "--pred-probs", str(tmp_path / "p.npy")]
    assert main(["find-issues", *options, "--out", str(tmp_path / "i.csv")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: pred_probs: the most probable class is the label in 0.00%")
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("option", "value", "key"),
    [
        ("--features", "missing.npy", "--features"),
        ("--features", "text.npy", "--features"),
        ("--features", "cut.npy", "--features"),
        ("--features", "header.npy", "--features"),
        ("--features", "fifo.npy", "--features"),
        ("--features", "objects.npy", "--features"),
        ("--labels", "objects.npy", "--labels"),
        ("--pred-probs", "several.npz", "--pred-probs"),
        ("--out", "issues.parquet", "--out"),
        ("--fraction", "2", "fraction"),
    ],
)
def test_find_issues_command_names_the_option_that_is_wrong(
    option: str, value: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "cut.npy").write_bytes(b"\x93NUM")
    header = b"{'descr': [(".ljust(117) + b"\n"
    (tmp_path / "header.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    os.mkfifo(tmp_path / "fifo.npy")
    np.save(tmp_path / "objects.npy", np.array(["a", "b"] * 30, dtype=object), allow_pickle=True)
    np.savez(tmp_path / "several.npz", a=np.ones(2))
    given = str(tmp_path / value) if "." in value else value
    assert main([*_files(tmp_path), "--out", str(tmp_path / "i.csv"), option, given]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {key}: ")
    assert line.count("\n") == 1
    assert "pickle" not in line
    assert ("labels.astype(str)" in line) == (option == "--labels")


def test_find_issues_command_checks_first_whether_it_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(find_issues_command, "find_issues", lambda *_, **__: pytest.fail("computed scores"))
    (tmp_path / "folder.csv").mkdir()
    assert main([*_files(tmp_path), "--out", str(tmp_path / "folder.csv")]) == 2
    assert printed_error(capsys.readouterr().err).key == "--out"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert main([*_files(tmp_path), "--out", str(tmp_path / "issues.csv")]) == 2
    assert printed_error(capsys.readouterr().err).key == "--out"


def test_a_fraction_that_is_no_number_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*_files(tmp_path), "--out", str(tmp_path / "i.csv"), "--fraction", "10%"])
    assert ended.value.code == 2
    assert "argument --fraction: 10% is no number; give a share from 0 to 1, or estimated" in capsys.readouterr().err
