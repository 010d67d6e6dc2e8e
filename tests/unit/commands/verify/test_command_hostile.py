"""`verify` reads the files of people who are not trusted: it ends in time, in lines that a terminal only prints."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands.verify import recorded, report
from pipeline.commands.verify.runs import link_steps
from pipeline.durations import BatchStage
from pipeline.runs.record import write_checksums
from pipeline.training import hash_chain
from pipeline.training.run_key import RunKey
from tests.fixtures.forgeries import data_of, edit_json, edit_table, entries, statements, work_of
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.training import TINY
from tests.fixtures.verified import STUDY_NAME, run_verify, write_verified_project

_ESCAPES = "\x1b[2J\x1b[1;1Hresult   nothing that was checked differs\u202e"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_verified_project(tmp_path_factory.mktemp("honest"), seeds=[0, 1])


def _rewrite_entry(entry: Path, name: str, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Edit a file of an entry, with its checksums, its key and its name; return the entry."""
    write_json(entry / name, edit(read_json(entry / name)))
    write_checksums(entry)
    if name != "identity.json":
        return entry
    return entry.rename(entry.with_name(RunKey(**read_json(entry / name)).fingerprint))


def _copy_entry(entry: Path) -> Path:
    copy = entry.with_name("0" * 24)
    shutil.copytree(entry, copy)
    return copy


def _other_seed(seed: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda key: {**key, "job": {**key["job"], "settings": {**key["job"]["settings"], "seed": seed}}}


def test_hostile_names_and_values_are_lines_and_no_traceback(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, expected = data_of(project), []
    # Lines that a terminal would obey, in a value and in the name of a file.
    edit_table(data.runs(STUDY_NAME), trained_on=_ESCAPES)
    expected.append(r"trained_on of .*\\x1b\[2J")
    (statement,) = statements(project)
    shutil.copy(statement, statement.with_name("2\nresult   nothing that was checked differs.json"))
    expected.append(r"file name: 2 result ")
    # A name that no file system has.
    record = read_json(data.provenance("train", STUDY_NAME))
    edit_json(data.provenance("train", STUDY_NAME), outputs={**record["outputs"], "x" * 5000: "0"})
    expected.append("cannot be read")
    # Runs that claim more steps than anyone can count, in a key of settings as strange.
    one, two, three, _ = entries(project)
    huge = 10**10
    _rewrite_entry(
        one, "result.json",
        lambda result: {**result, "history": [*result["history"], {**result["history"][-1], "step": huge}]},
    )  # fmt: skip
    expected.append(f"last step of the curve: {huge}, expected 2")
    _rewrite_entry(_copy_entry(two), "identity.json", lambda key: {**key, "job": {**key["job"], "settings": [1]}})
    expected.append("not the key of a run")
    _rewrite_entry(_copy_entry(three), "identity.json", _other_seed([1, 2]))
    expected.append("has values that no stage writes")
    # A number that JSON does not have.
    metrics = data.filter_metrics("resnet18")
    metrics.write_text(metrics.read_text().replace("{", '{"x": NaN,', 1))
    expected.append("metrics.json: has NaN")

    code, lines = run_verify(project, capsys)
    assert code == 1
    for words in expected:
        assert any(line.startswith("DIFFERS") and re.search(words, line) for line in lines), (words, lines)
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if line.startswith("result")] == ["result   something differs"]


def test_a_value_twice_is_none(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person sees the first, and most parsers take the last."""
    path = entries(project)[0] / "result.json"
    path.write_text(path.read_text().replace("{", '{"top1": 0.99,', 1))
    write_checksums(path.parent)
    code, lines = run_verify(project, capsys)
    assert code == 1
    assert any(line.startswith("DIFFERS") and "result.json: has the key top1 twice" in line for line in lines), lines


def test_a_key_without_settings_is_no_traceback_in_an_audit(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (first, *_) = entries(project)
    name = _rewrite_entry(
        first, "identity.json", lambda key: {**key, "job": {k: v for k, v in key["job"].items() if k != "settings"}}
    ).name
    table = data_of(project).runs(STUDY_NAME)
    rows = read_parquet(table).to_pylist()
    rows = [{**row, "fingerprint": name if row["fingerprint"] == first.name else row["fingerprint"]} for row in rows]
    write_parquet(table, pa.Table.from_pylist(rows, schema=read_parquet(table).schema))
    code, lines = run_verify(project, capsys, "--retrain", "4")
    assert code == 1
    assert any(line.startswith("DIFFERS") and "identity.json: " in line for line in lines)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("harm", [_fifo, _endless])
@pytest.mark.parametrize(
    "name", ["report/summary.json", "report/report.md", "train/digits.parquet", "prepare/test.npy"]
)
def test_what_never_ends_is_refused(
    harm: Callable[[Path], None], name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(project / "data" / name)
    (project / "data" / "loop").symlink_to(project / "data", target_is_directory=True)
    assert main(["verify", str(project)]) == 2
    assert printed_error(capsys.readouterr().err).key.endswith(name)


@pytest.mark.parametrize("status", ["evil", "diverged", None])
def test_a_status_in_the_tables_cannot_hide_its_answers(
    status: str | None, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a ledger, where the tables are the record."""
    shutil.rmtree(work_of(project).ledger)
    edit_table(data_of(project).runs(STUDY_NAME), status=status, top1=0.99)
    code, lines = run_verify(project, capsys)
    assert code == 1
    assert any(line.startswith("DIFFERS") and f"status {status} with" in line for line in lines), lines


def test_a_table_of_too_many_rows_is_not_read(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "_MAX_ROWS", 3)
    monkeypatch.setattr(report, "load_report_inputs", None)
    code, lines = run_verify(project, capsys)
    assert code == 1
    assert any(line.startswith("DIFFERS") and "4 rows, more than 3" in line for line in lines), lines
    assert not any("TypeError" in line for line in lines), "the report reads it"


def test_a_file_of_a_run_that_is_too_large_is_not_read(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(path: Path) -> str:
        assert path.stat().st_size < 1_000_000_000, "it is read before its size is compared"
        return sha256_of_file(path)

    monkeypatch.setattr(recorded, "sha256_of_file", short)
    os.truncate(entries(project)[0] / "correct.npy", 10_000_000_000)  # a file of holes, which takes no space
    code, lines = run_verify(project, capsys)
    assert code == 1
    assert any(line.startswith("DIFFERS") and "10,000,000,000 bytes, more than" in line for line in lines), lines


def test_a_record_leads_to_no_file_outside_the_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its digest would be printed; and some files of the system never end."""
    secret = project.parent / "secret"
    secret.write_text("secret")
    path = data_of(project).provenance("train", STUDY_NAME)
    named = {str(secret): "0", "../../../secret": "0"}
    edit_json(path, inputs={**read_json(path)["inputs"], **named})
    code, lines = run_verify(project, capsys)
    assert code == 1
    assert not [line for line in lines if sha256_of_file(secret)[:12] in line]
    assert len([line for line in lines if line.startswith("DIFFERS") and "is not read" in line]) == 2, lines


def _step_zero(result: dict[str, Any]) -> dict[str, Any]:
    first = {**result["history"][0], "step": 0, "examples": 0, "epoch": 0.0}
    return {**result, "history": [first, *result["history"]]}


def _many_milestones(key: dict[str, Any]) -> dict[str, Any]:
    options = {"milestones": [1] * 1001, "factor": 0.5}
    settings = {**key["job"]["settings"], "schedule": "step", "schedule_options": options}
    return {**key, "job": {**key["job"], "settings": settings}}


def test_values_that_no_run_has_leave_the_other_checks(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "_MAX_RECORDS", 50)
    one, two, three, _ = entries(project)
    _rewrite_entry(one, "result.json", _step_zero)
    _rewrite_entry(two, "identity.json", _many_milestones)
    _rewrite_entry(three, "result.json", lambda result: {**result, "history": [result["history"][0]] * 51})
    code, lines = run_verify(project, capsys)
    assert code == 1
    for words in ("history.0.step", "a list of 1,001 values", "51 records of the curve"):
        assert any(line.startswith("DIFFERS") and words in line for line in lines), (words, lines)
    assert lines[-1] == "result   something differs"


def test_a_run_without_a_chain_is_mentioned(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _rewrite_entry(entries(project)[0], "result.json", lambda result: {**result, "links": []})
    _, lines = run_verify(project, capsys)
    assert "note     1 runs have no hash chain, as an earlier version recorded them" in lines


@given(
    batch_size=st.integers(2, 60_000),
    steps=st.integers(1, 300),
    stage=st.none() | st.tuples(st.integers(2, 60_000), st.integers(1, 200)),
    last=st.integers(1, 300),
)
def test_links_are_due_at_the_steps_that_training_has_them(
    batch_size: int, steps: int, stage: tuple[int, int] | None, last: int
) -> None:
    stages = () if stage is None else (BatchStage(batch_size=stage[0], until_step=stage[1]),)
    settings = type(TINY)(**{**vars(TINY), "batch_size": batch_size, "steps": steps, "batch_stages": stages})
    last = min(last, steps)
    due = [step for step in range(1, last + 1) if hash_chain.link_is_due(settings, step)]
    assert link_steps(settings, last) == due


def test_deep_values_are_a_line(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = data_of(project).summary
    for depth in (900, 940, 960, 980, 100_000):
        summary.write_text(json.dumps({"top1": 1})[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}")
        code, lines = run_verify(project, capsys)
        assert code == 1
        assert any(line.startswith("DIFFERS") and "summary.json" in line for line in lines), depth


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (["--retrain", "-1"], "--retrain -1"),
        (["--seed", "-2"], "--seed -2"),
        (["--published", "xyz"], "--published xyz"),
        (["--params", "no-such.yaml"], "no-such.yaml"),
    ],
)
def test_bad_options_are_one_line(
    options: list[str], key: str, honest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(honest), *options]) == 2
    assert printed_error(capsys.readouterr().err).key.endswith(key)
