"""The whole text of `verify`: of a project as it was recorded, and of one with changes of each kind."""

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.config.study_plan import plan_hash
from pipeline.runs.record import CHECKSUMS, write_checksums
from tests.fixtures.forgeries import data_of, edit_json, statements, work_of
from tests.fixtures.golden import check_golden
from tests.fixtures.verified import STUDY_NAME, write_report, write_verified_project

# What differs between machines and days, and what stands for it.
_HIDDEN = {
    r"\d{4}-\d\d-\d\dT[\d:.]+Z": "DATE",
    r"took \d+ s": "took N s",
    r"\d+ values of summary.json, \d+ lines": "N values of summary.json, N lines",
    r"-?\d+\.\d{4,}": "NUMBER",
    r"\b[0-9a-f]{12,}\b": "HEX",
}
# Runs are in the order of their fingerprints, which other machines have others of.
_OF_RUNS = ("equal", "DIFFERS")


def _text(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return what `verify` prints, with its exit code and without what differs between machines."""
    capsys.readouterr()
    code = main(["verify", str(folder), *options])
    text = capsys.readouterr().out.replace(str(folder), "PROJECT")
    for pattern, shown in _HIDDEN.items():
        text = re.sub(pattern, shown, text)
    lines: list[str] = []
    for word, group in groupby(text.splitlines(), key=lambda line: line.split()[0]):
        of_word = list(group)
        lines += sorted(of_word) if word in _OF_RUNS else of_word
    return "\n".join([*lines, f"exit     {code}", ""])


def _run(folder: Path, arm: str, seed: int) -> Path:
    """Return the folder of a run in the ledger."""
    rows = read_parquet(data_of(folder).runs(STUDY_NAME), ["arm", "seed", "fingerprint"]).to_pylist()
    name = next(row["fingerprint"] for row in rows if (row["arm"], row["seed"]) == (arm, seed))
    return work_of(folder).ledger / str(name)


def _edit_run(folder: Path, arm: str, seed: int, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the recorded result of a run, with the checksums that belong to it."""
    result = _run(folder, arm, seed) / "result.json"
    write_json(result, edit(read_json(result)))
    write_checksums(result.parent)


def _state_change_of_plan(folder: Path) -> None:
    """State the plan with fewer seeds before the runs, and the present one after them; write the report again."""
    (statement,) = statements(folder)
    plan = read_json(statement)["plan"]
    statement.unlink()
    for date, changes in (("2026-01-01T00:00:00.000000Z", {"seeds": [0, 1, 2]}), ("2099-01-01T00:00:00.000000Z", {})):
        stated = {**plan, **changes}
        path = work_of(folder).plans(STUDY_NAME) / f"{date.replace(':', '')}-{plan_hash(stated)[:12]}.json"
        write_json(path, {"date": date, "plan": stated, "sha256": plan_hash(stated)})
    write_report(folder)


def _other_rate(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "history": [{**record["history"][0], "lr": 0.3}, *record["history"][1:]]}


def _moved_link(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "links": [{**record["links"][0], "step": 1}, *record["links"][1:]]}


def test_the_text_of_a_verification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_verified_project(tmp_path / "project")
    texts = {"as recorded": _text(folder, capsys, "--retrain", "8", "--seed", "1")}
    _state_change_of_plan(folder)
    (_run(folder, "random", 3) / CHECKSUMS).unlink()
    texts["a change of the plan, and a run of an earlier version"] = _text(folder, capsys)
    _edit_run(folder, "filtered", 0, _other_rate)
    _edit_run(folder, "random", 1, _moved_link)
    edit_json(statements(folder)[0], sha256="0" * 64)
    texts["edited"] = _text(folder, capsys, "--published", "0123456789ab")
    check_golden("verify.txt", "\n".join(f"## {name}\n\n{text}" for name, text in texts.items()))
