"""`python -m pipeline canonical-runs`, and earlier code from git's history."""

import dataclasses
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.commands import canonical_runs as module
from pipeline.commands.canonical_runs import CanonicalHashes, earlier_hashes
from pipeline.errors import InputError
from pipeline.training.code_families import FAMILIES_FILE, Family, MachineHashes, read_families, write_families

MACHINE = {"torch": "2"}
A, B, C = (letter * 64 for letter in "abc")
HERE = CanonicalHashes(code=C, machine=MACHINE, hashes={"sgd": "01"})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list with one family, and a machine that gives `HERE`."""
    path = tmp_path / "canonical_runs.json"
    write_families([Family(members=(A,), records=(MachineHashes(machine=MACHINE, hashes={"sgd": "01"}),))], path)
    monkeypatch.setattr(module, "read_families", lambda: read_families(path))
    monkeypatch.setattr(module, "write_families", lambda families: write_families(families, path))
    monkeypatch.setattr(module, "run_local", lambda _: HERE)
    return path


def test_without_record_nothing_is_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = place.read_bytes()
    assert main(["canonical-runs"]) == 1
    line, hint = capsys.readouterr().out.splitlines()
    assert line == "cccccccccccc joins family aaaaaaaaaaaa: its 1 hashes are equal; runs stay valid"
    assert "--record" in hint.replace("`", " ").split()
    assert place.read_bytes() == before


def test_what_is_recorded_is_listed_the_next_time(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["canonical-runs", "--record"]) == 0
    (family,) = read_families(place)
    assert family.members == (A, C)
    capsys.readouterr()
    assert main(["canonical-runs"]) == 0
    assert capsys.readouterr().out == "cccccccccccc is listed in family aaaaaaaaaaaa; its 1 hashes are as recorded\n"


def test_jobs_that_the_list_lacks_are_counted_apart(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = dataclasses.replace(HERE, hashes={"sgd": "01", "wide": "02", "deep": "03"})
    monkeypatch.setattr(module, "run_local", lambda _: more)
    assert main(["canonical-runs", "--record"]) == 0
    assert capsys.readouterr().out == (
        "cccccccccccc joins family aaaaaaaaaaaa: its 1 hashes are equal, and 2 are of new jobs; runs stay valid\n"
    )
    newest = dataclasses.replace(HERE, hashes={**more.hashes, "lars": "04"})
    monkeypatch.setattr(module, "run_local", lambda _: newest)
    assert main(["canonical-runs"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "cccccccccccc is listed in family aaaaaaaaaaaa; its 3 hashes are as recorded, and 1 are of new jobs", _LACKS,
    ]  # fmt: skip


@pytest.mark.usefixtures("place")
def test_json_is_an_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["canonical-runs", "--json"]) == 0
    assert CanonicalHashes(**json.loads(capsys.readouterr().out)) == HERE


_AVX2 = {"torch": "2", "device": "AVX2"}
_LISTED = (
    MachineHashes(machine={**_AVX2, "arithmetic": "a"}, hashes={"sgd": "01", "lars": "02", "older": "03"}),
    # As with another setting of MKL, with fewer equal hashes.
    MachineHashes(machine={**_AVX2, "arithmetic": "b"}, hashes={"sgd": "11", "lars": "12", "muon": "13"}),
    MachineHashes(machine={**_AVX2, "device": "AVX512", "arithmetic": "c"}, hashes={"sgd": "21", "lars": "22"}),
    MachineHashes(machine={**_AVX2, "torch": "1", "arithmetic": "d"}, hashes={"sgd": "21", "lars": "22"}),
)
_LACKS = "canonical_runs.json: lacks this code, this machine or a job; add --record to write it"


def _give(monkeypatch: pytest.MonkeyPatch, path: Path, machine: dict[str, Any], hashes: dict[str, str]) -> None:
    """Make this machine give `hashes`, with a family that lists its code."""
    write_families([Family(members=(A, C), records=_LISTED)], path)
    monkeypatch.setattr(module, "run_local", lambda _: CanonicalHashes(code=C, machine=machine, hashes=hashes))
    monkeypatch.setattr(module, "limit_instructions", lambda _: None)  # torch computes in this process
    monkeypatch.setattr(module, "earlier_hashes", lambda *_: None)  # no history


@pytest.mark.parametrize(
    ("hashes", "verdict"),
    [
        ({"sgd": "01", "lars": "99", "new": "04"}, "does not give the recorded bits: 1 of 2 hashes differ"),
        ({"sgd": "21", "lars": "22", "muon": "99"}, "does not give the recorded bits: 3 of 3 hashes differ"),
        ({"sgd": "01", "lars": "02", "new": "04"}, "gives the recorded bits: 2 hashes are equal"),
    ],
)
def test_another_processor_gets_a_verdict(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], hashes: dict[str, str],
    verdict: str,
) -> None:  # fmt: skip
    """Compared with records of the same instructions and versions alone, and without git's history."""
    _give(monkeypatch, place, {**_AVX2, "arithmetic": "e"}, hashes)
    assert main(["canonical-runs", "--isa", "avx2"]) == 1
    assert capsys.readouterr().out.splitlines() == [f"this processor {verdict}", _LACKS]


def test_a_processor_without_a_record_of_its_kind_gets_no_verdict(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _give(monkeypatch, place, {**_AVX2, "torch": "3", "arithmetic": "e"}, {"sgd": "01"})
    assert main(["canonical-runs", "--isa", "avx2"]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first == "no hashes are recorded with these instructions and versions (torch 3, device AVX2)"
    assert last == _LACKS


def test_listed_processors_and_runs_without_isa_are_as_before(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _give(monkeypatch, place, {**_AVX2, "arithmetic": "a"}, dict(_LISTED[0].hashes))
    assert main(["canonical-runs", "--isa", "avx2"]) == 0
    assert "its 3 hashes are as recorded" in capsys.readouterr().out
    _give(monkeypatch, place, {**_AVX2, "arithmetic": "e"}, {"sgd": "99"})
    assert main(["canonical-runs"]) == 2
    assert "full clone" in capsys.readouterr().err


Commit = Callable[..., str]


@pytest.fixture
def commit(tmp_path: Path) -> Commit:
    """Commit code that prints an outcome, with a list of digests next to it; the repository is `tmp_path`."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    def committed(code: str, listed: list[str], *, hashes: dict[str, str] | None = None, **changes: Any) -> str:
        outcome = {**dataclasses.asdict(HERE), "code": code, "hashes": hashes or {"sgd": code[:2]}, **changes}
        for folder in ("pipeline", "viz"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / "__init__.py").touch()
        (tmp_path / "pipeline/__main__.py").write_text(f"print({json.dumps(outcome)!r})\n")
        path = tmp_path / "pipeline/training" / FAMILIES_FILE.name
        path.parent.mkdir(exist_ok=True)
        write_families([Family(members=tuple(listed), records=())], path)
        author = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", "add", "--all", "."], cwd=tmp_path, check=True)
        subprocess.run(["git", *author, "commit", "-qm", "x"], cwd=tmp_path, check=True)
        return code

    return committed


def _family(*members: str) -> Family:
    return Family(members=members, records=())


@pytest.mark.subprocess
def test_the_newest_other_member_in_history_is_run(tmp_path: Path, commit: Commit) -> None:
    commit(A, [A])
    commit(B, [A, B])
    commit(C, [A, B, C])
    assert earlier_hashes(_family(A, B, C), HERE, tmp_path) == {"sgd": "bb"}
    assert earlier_hashes(_family(A), HERE, tmp_path) == {"sgd": "aa"}


@pytest.mark.subprocess
def test_a_commit_whose_code_is_not_the_one_it_lists_is_left_out(tmp_path: Path, commit: Commit) -> None:
    """The code was edited between recording and committing."""
    commit(A, [A])
    commit("d" * 64, [A, B])
    assert earlier_hashes(_family(A, B, C), HERE, tmp_path) == {"sgd": "aa"}


@pytest.mark.subprocess
def test_history_without_other_members_has_nothing(tmp_path: Path, commit: Commit) -> None:
    assert earlier_hashes(_family(A, C), HERE, tmp_path) is None
    commit(C, [A, C])
    assert earlier_hashes(_family(C), HERE, tmp_path) is None
    assert earlier_hashes(_family(A, C), HERE, tmp_path) is None
    assert earlier_hashes(_family(A, C), HERE, tmp_path.parent) is None


@pytest.mark.subprocess
def test_earlier_code_that_fails_is_reported(tmp_path: Path, commit: Commit) -> None:
    commit(A, [A])
    (tmp_path / "pipeline/__main__.py").write_text("raise SystemExit('no such package')\n")
    commit_again = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qa", "--amend", "-m", "x"]
    subprocess.run(commit_again, cwd=tmp_path, check=True)
    with pytest.raises(InputError, match="no such package"):  # printed by the earlier code
        earlier_hashes(_family(A, C), HERE, tmp_path)


def test_slow_runs_of_earlier_code_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def too_slow(command: Sequence[str], **_: Any) -> None:
        if command[0] != "tar":
            raise subprocess.TimeoutExpired(command, 600)

    monkeypatch.setattr(module, "git_output", lambda *_: b"")
    monkeypatch.setattr(subprocess, "run", too_slow)
    with pytest.raises(InputError) as raised:
        module._run_commit("a" * 40, tmp_path)
    assert raised.value.key == "a" * 12
