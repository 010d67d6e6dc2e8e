"""Running a command: text that a terminal lacks, readers that go early, and names that are too long."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batchsieve.cli import main, parser_of
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import ROOT


def _start(*arguments: str, **variables: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_reader_that_goes_early_ends_the_command_silently(unbuffered: str) -> None:
    with _start("preset", PYTHONUNBUFFERED=unbuffered) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        error = process.stderr.read()
    assert (error, process.returncode) == (b"", 141)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", rb"\xfc.json"), ("utf-8", "ü.json".encode())])
def test_names_that_the_terminal_cannot_show_are_escaped(encoding: str, shown: bytes, tmp_path: Path) -> None:
    out, error = _start("schema", "--out", str(tmp_path / "ü.json"), PYTHONIOENCODING=encoding).communicate()
    assert out == bytes(tmp_path) + b"/" + shown + b": written\n", error


@pytest.mark.slow
@pytest.mark.parametrize("command", ["diagnose", "simulate"])
def test_help_leaves_no_line_on_standard_error(command: str) -> None:
    """Both import triton, whose objects say so when they outlive Python."""
    out, error = _start(command, "--help").communicate()
    assert out.startswith(b"usage: python -m pipeline")
    assert error == b""


def test_help_has_the_name_by_which_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, called in (("batchsieve", "batchsieve compare"), ("__main__.py", "python -m pipeline compare")):
        monkeypatch.setattr(sys, "argv", [name])
        text = parser_of("pipeline.commands.compare.command").format_help()
        assert text.startswith(f"usage: {called}")
        assert f"\n`{called} A B`: " in text


def test_a_name_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.json")
    out, error = _start("schema", "--out", str(tmp_path / name)).communicate()
    assert out == bytes(tmp_path) + rb"/caf\udce9.json: written" + b"\n", error
    assert (tmp_path / name).is_file()


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = tmp_path / f"{'x' * 300}.json"
    assert main(["schema", "--out", str(long)]) == 2
    assert printed_error(capsys.readouterr().err).key == str(long)
