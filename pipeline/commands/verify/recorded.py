"""Read what a project records: its ledger of runs, or the tables of its studies where the ledger is missing."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.artifacts.files import open_array
from pipeline.artifacts.prepared import PreparedData, load_prepared, prepared_digests, prepared_files
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet
from pipeline.commands.verify.findings import Findings, shown
from pipeline.config.batch_sizes import with_recorded_sizes
from pipeline.config.params import Params, load_params
from pipeline.durations import BatchStage
from pipeline.errors import InputError
from pipeline.instruction_set import limit_instructions
from pipeline.paths import DataPaths, WorkPaths
from pipeline.runs.ledger import Ledger, RunResult
from pipeline.runs.record import CHECKED_FILES, CHECKSUMS, WEIGHTS, check_bounded, read_small_json
from pipeline.runs.study_tables import HISTORY_SCHEMA, RUNS_SCHEMA
from pipeline.training.run_key import RunKey
from pipeline.training.settings import ImageFormat, TrainSettings
from pipeline.training.state import ChainLink, HistoryRecord

_MAX_ROWS = 1_000_000
_MAX_RECORDS = 100_000
"""Most records of a curve, and links of a chain: each is compared with what the settings say."""
_MAX_LIST = 1000
"""Most values of a list in settings, such as milestones: each record of a curve is compared with all of them."""
# Key of `RunResult.critical_batch` -> end of the name of its column.
_NOISE = {"critical_batch": "", "low": "_low", "high": "_high"}


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as it was recorded.

    Attributes:
        folder: its entry in the ledger; the study's table where there is no ledger.
        key: None without a ledger.
        settings: None if another version of the code recorded them.
    """

    fingerprint: str
    folder: Path
    key: RunKey | None
    settings: TrainSettings | None
    result: RunResult

    @property
    def machine(self) -> Mapping[str, Any] | None:
        """The machine that trained it, which the key of an imported run does not have."""
        return self.result.imported_from or (self.key.machine if self.key else None)


class StoredRuns(Ledger):
    """Runs that are already read and checked, where a ledger is needed."""

    def __init__(self, root: Path, runs: Mapping[str, StoredRun]) -> None:
        super().__init__(root)
        self._runs = runs

    def has(self, key: str, *, with_weights: bool = False) -> bool:
        """Return whether a run was recorded."""
        assert not with_weights
        return key in self._runs

    def get(self, key: str) -> RunResult:
        """Return the result of a recorded run."""
        return self._runs[key].result


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project whose results are verified.

    Attributes:
        file: its parameter file.
        data_digest: of images and labels, as in the keys of runs.
        equal_files: prepared file -> digests of other files with equal images and labels, which runs were trained on.
        has_ledger: whether there is a ledger of runs; otherwise `runs` come from the tables of the studies.
        runs: by fingerprint.
    """

    file: Path
    params: Params
    data: DataPaths
    work: WorkPaths
    prepared: PreparedData
    data_digest: str
    equal_files: Mapping[Path, frozenset[str]]
    has_ledger: bool
    runs: Mapping[str, StoredRun]


def read_project(params: Path, data: DataPaths, work: WorkPaths, findings: Findings) -> Project:
    """Read a project; damaged runs are left out and added to `findings`.

    Raises:
        InputError: the parameters or the prepared images are missing or damaged.
    """
    config = with_recorded_sizes(load_params(params, accept_old_keys=True), data)
    limit_instructions(config.train.isa)
    if not data.images("test").exists():
        raise InputError(
            f"{data.images('test')}: missing; put the images in place and run: python -m pipeline.stages.prepare"
        )
    prepared = load_prepared(data, folder=config.prepare.folder)
    folders = sorted(path for path in work.ledger.glob("[0-9a-f]*") if path.is_dir())
    digest, content = prepared_digests(data)
    equal_files: dict[Path, frozenset[str]] = {}
    if folders:
        recorded = _read_ledger(folders, findings)
        equal_files = _equal_files(recorded, data, digest, content)
        runs = [_on_this_data(run, digest, content, findings) for run in recorded]
        if n_others := sum(run is not other for run, other in zip(runs, recorded, strict=True)):
            findings.notes.append(
                f"{n_others} runs were trained on files of other bytes, with the images and labels of {data.root}"
            )
    else:
        runs = _read_tables(config, data, findings)
        findings.notes.append(
            f"{work.ledger}: has no runs; the tables of data/train are taken as the record, and nothing can be "
            "trained again"
        )
    return Project(
        file=params, params=config, data=data, work=work, prepared=prepared, data_digest=digest,
        equal_files=equal_files, has_ledger=bool(folders), runs={run.fingerprint: run for run in runs},
    )  # fmt: skip


def _read_ledger(folders: list[Path], findings: Findings) -> list[StoredRun]:
    runs = []
    for folder in folders:
        with findings.collecting_errors(folder):
            _check_checksums(folder, findings)
            key = _read_key(folder, findings)
            result = Ledger(folder.parent).get(folder.name)
            _check_lengths(folder, result.history, result.links, key.job.get("settings"))
            settings = read_settings(key.job.get("settings"))
            if settings is None:
                findings.notes.append(f"{folder}: its settings are of another version; its steps are not checked")
            runs.append(StoredRun(fingerprint=folder.name, folder=folder, key=key, settings=settings, result=result))
    return runs


def _check_lengths(source: Path, history: Sequence[Any], links: Sequence[Any], settings: Any) -> None:
    """Check that a run is compared with its settings in bounded time.

    Raises:
        InputError: its curve, its chain or a list in its settings is too long.
    """
    for name, records in (("records of the curve", history), ("links of the hash chain", links)):
        if len(records) > _MAX_RECORDS:
            raise InputError(f"{source}: {len(records):,} {name}, more than {_MAX_RECORDS:,}; restore the run")
    level = [settings]
    while level := [value for value in level if isinstance(value, dict | list)]:
        longest = max((len(value) for value in level if isinstance(value, list)), default=0)
        if longest > _MAX_LIST:
            raise InputError(
                f"{source}: settings with a list of {longest:,} values, more than {_MAX_LIST:,}; restore the run"
            )
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]


def check_rows(path: Path) -> None:
    """Check that a table that anyone may have written has no more rows than are read.

    Raises:
        InputError: it is missing, damaged or too long.
    """
    read_parquet(path, (), max_rows=_MAX_ROWS)


def _on_this_data(run: StoredRun, digest: str, content: str, findings: Findings) -> StoredRun:
    """Return a run with the digest of the prepared files here, if its own had other bytes and the same content.

    Runs of earlier versions recorded no content: only the bytes of the files can be compared.
    """
    assert run.key is not None, "read from a ledger"
    same_bytes, same_content = run.key.job.get("data") == digest, run.key.content == content
    if run.key.content and same_bytes and not same_content:
        value, expected = shown(run.key.content)[:16], content[:16]
        findings.differs(run.folder / "identity.json", "content of the images and labels", value, expected)
    if same_bytes or not same_content:
        return run
    return replace(run, key=replace(run.key, job={**run.key.job, "data": digest}))


def _equal_files(runs: Sequence[StoredRun], data: DataPaths, digest: str, content: str) -> dict[Path, frozenset[str]]:
    """Return the digests of each prepared file in the keys of the runs with the content of the files here."""
    keys = [run.key for run in runs if run.key is not None and run.key.content == content]
    files, texts = prepared_files(data), [digest, *(str(key.job.get("data")) for key in keys)]
    rows = [row for text in texts if len(row := text.split()[: len(files)]) == len(files)]
    return {file: frozenset(column) for file, column in zip(files, zip(*rows, strict=True), strict=True)}


def _check_checksums(folder: Path, findings: Findings) -> None:
    """Compare the files of an entry with its checksums; entries of earlier versions have none."""
    if not (folder / CHECKSUMS).exists():
        findings.notes.append(f"{folder}: has no {CHECKSUMS}; an earlier version recorded it")
        return
    digests = read_small_json(folder / CHECKSUMS)
    if not isinstance(digests, dict):
        findings.wrong(folder / CHECKSUMS, "not a list of files")
        return
    for name in CHECKED_FILES:
        path = folder / name
        if not path.exists():
            # `runs pack` leaves weights out.
            if name in digests and name != WEIGHTS:
                findings.wrong(path, "missing")
            continue
        check_bounded(path)
        if (digest := sha256_of_file(path)) != digests.get(name):
            findings.differs(path, "SHA-256", digest, digests.get(name, "none, since it is not listed"))


def _read_key(folder: Path, findings: Findings) -> RunKey:
    file = folder / "identity.json"
    try:
        key = RunKey(**read_small_json(file))
        whole = isinstance(key.job, dict) and isinstance(key.machine, dict)
        whole = whole and isinstance(key.job.get("settings", {}), dict)
    except TypeError:
        whole = False
    if not whole:
        raise InputError(f"{file}: not the key of a run; restore the file")
    if key.fingerprint != folder.name:
        findings.differs(file, "fingerprint", key.fingerprint, folder.name)
    return key


def _read_tables(params: Params, data: DataPaths, findings: Findings) -> list[StoredRun]:
    runs: dict[str, StoredRun] = {}
    for name in params.studies:
        with findings.collecting_errors(data.runs(name)):
            rows = read_rows(data.runs(name), RUNS_SCHEMA)
            records: dict[str, list[HistoryRecord]] = {}
            for record in read_rows(data.history(name), HISTORY_SCHEMA):
                values = {field.name: record[field.name] for field in fields(HistoryRecord) if field.name in record}
                records.setdefault(record["fingerprint"], []).append(HistoryRecord(**values))
            correct = open_array(data.correct(name), dtype=np.bool_, ndim=2, rows=len(rows))
            for row, answers in zip(rows, correct, strict=True):
                if row["status"] != "skipped" and row["fingerprint"] not in runs:
                    runs[row["fingerprint"]] = _run_of_row(
                        row, records.get(row["fingerprint"], []), np.array(answers), data.runs(name)
                    )
    return list(runs.values())


def read_rows(path: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    """Read the columns of `schema` that a table has: earlier versions wrote fewer.

    Raises:
        InputError: the file is missing or damaged.
    """
    table = read_parquet(path, max_rows=_MAX_ROWS)
    return table.select([name for name in table.column_names if name in schema.names]).to_pylist()  # type: ignore[no-any-return]


def _run_of_row(
    row: Mapping[str, Any], history: list[HistoryRecord], correct: np.ndarray[Any, np.dtype[np.bool_]], table: Path
) -> StoredRun:
    if not history:
        raise InputError(f"{table}: run {row['fingerprint']} has no training curve; restore the history")
    finished = row["status"] == "finished"
    figures = {name: row[name] for name in ("top1", "balanced_accuracy", "loss")}
    if row["status"] not in ("finished", "diverged") or any((v is not None) != finished for v in figures.values()):
        raise InputError(f"{table}: run {row['fingerprint']}: status {row['status']} with {figures}; restore the table")
    noise = {key: row.get(f"critical_batch{suffix}") for key, suffix in _NOISE.items()}
    end = row.get("chain_end")
    result = RunResult(
        status=row["status"], top1=row["top1"], balanced_accuracy=row["balanced_accuracy"], loss=row["loss"],
        history=tuple(history), correct=correct if row["status"] == "finished" else None, workers=row["workers"],
        hardware=tuple((row["trained_on"] or "").split("; ")), skipped_steps=row["skipped_steps"],
        micro_batch=row["micro_batch"],
        critical_batch=noise if any(value is not None for value in noise.values()) else None,
        links=(ChainLink(step=row["steps"], sha256=end),) if end else (),
        seconds=0.0,
    )  # fmt: skip
    recorded = _from_json(row["settings"])
    _check_lengths(table, history, (), recorded)
    settings = read_settings(recorded)
    return StoredRun(fingerprint=row["fingerprint"], folder=table, key=None, settings=settings, result=result)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def read_settings(values: Any) -> TrainSettings | None:
    """Return the settings of a record; None if they are of another version of the code."""
    try:
        values = dict(values)
        image_format: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values["format"].items()
        }
        values["format"] = ImageFormat(**image_format)
        values["batch_stages"] = tuple(BatchStage(**stage) for stage in values.get("batch_stages", ()))
        return TrainSettings(**values)
    except (TypeError, KeyError, AttributeError, ValueError):
        return None
