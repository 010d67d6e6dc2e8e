"""`filter-features --out`: decisions of people and results of stages stay, and its lines are printable."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.__main__ import main
from pipeline.artifacts.overrides import read_overrides
from pipeline.artifacts.provenance import write_provenance
from pipeline.commands.filter_features import command as command_module
from pipeline.commands.filter_features.outputs import suspect_lines
from tests.fixtures.printed_errors import printed_error
from tests.unit.commands.test_filter_features import _identify, _write

_DECISIONS = b"path,sha256,decision,label,note,timestamp\nimage 1.png,,drop,,blurred,2026-11-01T12:00:00Z\n"
_SCORER = {"name": "knn_agreement"}


@pytest.mark.parametrize("has_hashes", [False, True])
def test_decisions_in_the_folder_are_kept(has_hashes: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without hashes in the labels they were deleted, with them replaced."""
    command, _ = _write(tmp_path, scorer=_SCORER)
    if has_hashes:
        _identify(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/overrides.csv").write_bytes(_DECISIONS)
    assert main([*command, "--out", str(tmp_path / "data")]) == 2
    assert printed_error(capsys.readouterr().err).key == f"--out {tmp_path / 'data'}"
    assert (tmp_path / "data/overrides.csv").read_bytes() == _DECISIONS
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["overrides.csv"]


def test_decisions_that_were_edited_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = _write(tmp_path, scorer=_SCORER)
    _identify(tmp_path)
    for _ in range(2):
        assert main(command) == 0, capsys.readouterr().err
    file = tmp_path / "out/overrides.csv"
    written = file.read_text()
    file.write_text(written.replace(",keep,", ",drop,", 1))
    edited = file.read_text()
    capsys.readouterr()
    assert main(command) == 2
    assert "overrides.csv" in str(printed_error(capsys.readouterr().err))
    assert file.read_text() == edited != written
    file.rename(tmp_path / "mine.csv")
    assert main([*command, "--overrides", str(tmp_path / "mine.csv")]) == 0


def test_results_of_a_stage_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = _write(tmp_path, scorer=_SCORER)
    record = tmp_path / "out/provenance.json"
    write_provenance(record, stage="filter@resnet18", parameters={}, inputs=[], outputs=[])
    before = record.read_bytes()
    assert main(command) == 2
    assert "filter@resnet18" in str(printed_error(capsys.readouterr().err))
    assert {path: path.read_bytes() for path in record.parent.iterdir()} == {record: before}


def test_suspects_are_printed_one_per_line_without_escapes() -> None:
    """A label file may have names that a terminal would obey."""
    points = pa.table(
        {
            "sample_id": [0, 1],
            "path": ["a\x1b[2J.png", "b\nc.png"],
            "label_name": ["cat\r", "dog"],
            "suggested_label_name": ["dog", "cat\x1b]0;title\x07"],
            "keep": [False, False],
            "score": [0.75, 0.5],
            "reason": ["9 of 10 nearest neighbors are \u202edog", "9 of 10 nearest neighbors are cat"],
        }
    )
    lines = list(suspect_lines(points, 2))
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert "b\\nc.png" in lines[2]


@pytest.mark.parametrize("before", ["apply_filter", "write_overrides", "write_provenance"])
def test_decisions_made_while_it_runs_are_kept(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, _ = _write(tmp_path, scorer=_SCORER)
    _identify(tmp_path)
    assert main(command) == 0, capsys.readouterr().err
    out, step = tmp_path / "out", getattr(command_module, before)

    def decide(*arguments: Any, **options: Any) -> Any:
        (out / "overrides.csv").write_bytes(_DECISIONS)
        return step(*arguments, **options)

    earlier = (out / "points.parquet").stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr(command_module, before, decide)
        assert main(command) == 2
    assert printed_error(capsys.readouterr().err).key == f"--out {out}"
    assert (out / "overrides.csv").read_bytes() == _DECISIONS
    # Found before the first file is written, where it can be.
    assert ((out / "points.parquet").stat().st_ino == earlier) == (before == "apply_filter")
    assert main(command) == 2, "they are those of a person in the next run as well"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("file", ["points.parquet", "provenance.json", "overrides.csv"])
def test_a_killed_run_is_repeated_in_its_folder(
    file: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _ = _write(tmp_path, scorer=_SCORER)
    _identify(tmp_path)
    assert main(command) == 0
    rename = Path.replace

    def killed(source: Path, target: Path) -> Path:
        if target.name != file:
            return rename(source, target)
        if moment == "after":
            rename(source, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        # Other decisions than those of the first run.
        assert main([*command, "--drop-fraction", "0.1"]) == 130
    assert main([*command, "--drop-fraction", "0.2"]) == 0
    decided = {override.decision for override in read_overrides(tmp_path / "out/overrides.csv")}
    assert decided == {"keep", "drop"}


def test_decisions_to_apply_are_no_file_that_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = _write(tmp_path, scorer=_SCORER)
    _identify(tmp_path)
    assert main(command) == 0
    capsys.readouterr()
    file = tmp_path / "out/overrides.csv"
    assert main([*command, "--overrides", str(file)]) == 2
    assert printed_error(capsys.readouterr().err).key == f"--overrides {file}"
    assert file.exists()
