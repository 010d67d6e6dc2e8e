"""Dispatch, exit codes and lightness of `python -m pipeline`."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.__main__ import COMMANDS, main
from tests.fixtures.printed_errors import key_within, printed_error

_ROOT = Path(__file__).parents[3]


def test_valid_parameters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_ROOT)
    assert main(["validate", "--params", "presets/paper.yaml"]) == 0
    assert capsys.readouterr().out == "presets/paper.yaml: valid; networks: 5, studies: 14, runs: 2510\n"


def test_bad_parameters_end_with_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "params.yaml"
    path.write_text((_ROOT / "params.yaml").read_text().replace("image_size", "image_siz"))
    assert main(["validate", "--params", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert key_within(printed_error(captured.err), path) == "prepare.image_siz"


def test_overrides_are_validated_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(_ROOT)
    (tmp_path / "overrides.csv").write_text("path,sha256,decision,note,timestamp\na.png,aa,perhaps,,\n")
    assert main(["validate", "--data", str(tmp_path)]) == 2
    error = printed_error(capsys.readouterr().err)
    assert key_within(error, tmp_path / "overrides.csv") == "line 2"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["validate", "--nonsense"]])
def test_wrong_command_line_has_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


@pytest.mark.parametrize("option", ["diagnose --seconds", "critical-batch --tolerance", "simulate --compression"])
def test_words_are_called_no_number(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*option.split(), "ten"])
    assert "ten is not a number" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--help"])
    assert raised.value.code == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    folder = _ROOT / "pipeline" / "commands"
    files = [*folder.glob("*.py"), *folder.glob("*/command.py")]
    commands = [path for path in files if "\ndef make_parser(" in path.read_text(encoding="utf-8")]
    names = {path.stem if path.parent == folder else path.parent.name for path in commands}
    assert {name.replace("_", "-") for name in names} == listed & {*COMMANDS}
    assert len(names) == len(COMMANDS)


@pytest.mark.parametrize("command", ["compare", "doctor", "plan", "preset", "iterate", "schema", "validate"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([command, "--help"])
    assert raised.value.code == 0
    assert f"python -m pipeline {command}" in capsys.readouterr().out


def test_dispatch_and_doctor_start_without_any_package() -> None:
    """What is broken must not keep the command from starting that says what is broken."""
    code = (
        "import sys; from pipeline.__main__ import main; import pipeline.commands.doctor.command;"
        "print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'torch', 'pydantic', 'packaging', 'ruamel')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
