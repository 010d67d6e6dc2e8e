"""One line reports results that differ from the committed ones without changed inputs."""

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.commands.check_lock import main, stages_that_differ
from pipeline.errors import InputError


def _entry(stage: str, *dependencies: tuple[str, str], md5: str = "a") -> dict[str, Any]:
    return {
        "cmd": f"python -m pipeline.stages.{stage}",
        "deps": [{"path": path, "md5": digest * 32} for path, digest in dependencies],
        "params": {"params.yaml": {stage: {"seed": 0}}},
        "outs": [{"path": f"data/{stage}/out", "md5": md5 * 32}],
    }


def _lock(prepare: str = "a", finetune: str = "a", report: str = "a", *, code: str = "c") -> dict[str, Any]:
    """With the digests of the stages' outputs, and of the code of finetune."""
    stages = {
        "prepare": _entry("prepare", md5=prepare),
        "finetune@resnet18": _entry("finetune", ("pipeline/x.py", code), ("data/prepare/out", prepare), md5=finetune),
        "report": _entry("report", ("data/finetune/out", finetune), md5=report),
    }
    return {"schema": "2.0", "stages": stages}


@pytest.mark.parametrize(
    ("current", "named"),
    [
        pytest.param(_lock(), [], id="equal"),
        pytest.param(_lock(finetune="b", report="b"), ["finetune@resnet18"], id="the first stage, not what follows"),
        pytest.param(_lock(prepare="b", finetune="b"), ["prepare"], id="its own first stage"),
        pytest.param(_lock(finetune="b", report="b", code="d"), [], id="other code"),
        pytest.param(_lock(report="b"), [], id="the report alone"),
        pytest.param({"schema": "2.0", "stages": {"train@new": _entry("train")}}, [], id="another study"),
    ],
)
def test_what_has_equal_inputs_and_other_outputs_is_named(current: dict[str, Any], named: list[str]) -> None:
    assert stages_that_differ(_lock(), current) == named


def test_other_parameters_are_a_purpose() -> None:
    current = copy.deepcopy(_lock(finetune="b"))
    current["stages"]["finetune@resnet18"]["params"]["params.yaml"]["finetune"]["seed"] = 1
    assert stages_that_differ(_lock(), current) == []


def _printed(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    assert main([]) == 0
    return capsys.readouterr().out


def test_the_line_says_how_to_keep_and_how_to_discard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "dvc.lock"
    YAML().dump(_lock(), lock)
    assert _printed(tmp_path, capsys, monkeypatch) == "", "no repository"
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert _printed(tmp_path, capsys, monkeypatch) == "", "no commit"
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    author = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", *author, "commit", "-qm", "x"], cwd=tmp_path, check=True)
    assert _printed(tmp_path, capsys, monkeypatch) == ""
    YAML().dump(_lock(finetune="b", report="b"), lock)
    printed = _printed(tmp_path, capsys, monkeypatch)
    assert "finetune@resnet18:" in printed.split()
    assert printed.count("\n") == 1
    for command in ("git commit dvc.lock", "git checkout HEAD dvc.lock"):
        assert command in printed
    subprocess.run(["git", "checkout", "-q", "HEAD", "dvc.lock"], cwd=tmp_path, check=True)
    assert _printed(tmp_path, capsys, monkeypatch) == ""
    lock.unlink()
    assert _printed(tmp_path, capsys, monkeypatch) == "", "never run"


def test_without_git_there_is_nothing_to_compare_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    YAML().dump(_lock(), tmp_path / "dvc.lock")
    monkeypatch.setenv("PATH", "")
    assert _printed(tmp_path, capsys, monkeypatch) == ""


@pytest.mark.parametrize(
    ("cut", "key"),
    [
        pytest.param("current", "dvc.lock", id="here"),
        pytest.param("committed", "dvc.lock of the last commit", id="HEAD's"),
    ],
)
def test_a_lock_cut_short_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str, key: str) -> None:
    """In the middle of a value, which leaves no YAML; that of here also at the end of a line, which leaves YAML."""
    lock = tmp_path / "dvc.lock"
    YAML().dump(_lock(), lock)
    full = lock.read_bytes()
    lines = full.splitlines(keepends=True)
    short = [full[: full.index(b"md5") + 2], *([b"".join(lines[:-2]).rstrip()] if cut == "current" else [])]
    monkeypatch.chdir(tmp_path)
    for part in short:
        committed, current = (part, full) if cut == "committed" else (full, part)
        monkeypatch.setattr("pipeline.commands.check_lock.committed_lock", lambda _, content=committed: content)
        lock.write_bytes(current)
        with pytest.raises(InputError) as raised:
            main([])
        assert raised.value.key == key
