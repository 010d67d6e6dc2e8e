"""Check each study's runs against its parameters, and derive its tables again from the recorded runs."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.artifacts.files import open_array
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.commands.verify.findings import Findings, shown
from pipeline.commands.verify.recorded import Project, StoredRun, StoredRuns, read_rows
from pipeline.distributed import World
from pipeline.run_log import RunLog
from pipeline.runs.arm_rows import TrainRows
from pipeline.runs.grid import RunSpec
from pipeline.runs.ledger import RunResult
from pipeline.runs.study_tables import HISTORY_SCHEMA, RUNS_SCHEMA, StudyTables, study_tables
from pipeline.stages.harness import StageContext
from pipeline.stages.study_runs import resolve_runs, used_runs
from pipeline.training.run_key import RunKey
from pipeline.training.settings import NEWER, TrainSettings

Row = Mapping[str, Any]
_IDENTITY = ("model", "arm", "filter_network", "batch_size", "learning_rate", "weight_decay", "seed")
_PARTS = {"data": "images and labels of the data", "members": "images trained on", "labels": "labels changed"}
_ALONE = World(rank=0, size=1, device=torch.device("cpu"))


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """A run that the report uses, or a segment of it: what its study says of it, and its fingerprint in the record.

    Attributes:
        first_link: links of the hash chain before the segment; 0: from the start of the run.
        n_links: links up to the end of the segment; None: to the end of the run.
    """

    study: str
    spec: RunSpec
    rows: TrainRows
    fingerprint: str
    first_link: int = 0
    n_links: int | None = None

    @property
    def is_segment(self) -> bool:
        """Whether this is a part of the run."""
        return self.first_link > 0 or self.n_links is not None

    def part_of(self, result: RunResult) -> RunResult:
        """Return what a result of the whole run says of this segment and of what is before it."""
        if self.n_links is None:
            return result
        links = result.links[: self.n_links]
        last = links[-1].step if links else 0
        history = tuple(record for record in result.history if record.step <= last)
        return replace(result, links=links, history=history, correct=None, critical_batch=None)


@dataclass(frozen=True, kw_only=True)
class VerifiedStudy:
    """A study whose runs are all recorded.

    Attributes:
        runs: without skipped ones.
        tables: derived from the record; None if a run is missing.
    """

    runs: list[StudyRun]
    tables: StudyTables | None


def check_study(name: str, project: Project, findings: Findings) -> VerifiedStudy:
    """Check that a study's table has the runs of params.yaml, with the images and settings that it says.

    Raises:
        InputError: a file of the study or of its filters is missing or damaged.
    """
    context = StageContext(
        stage="train", item=name, params=project.params, data=project.data, work=project.work, log=RunLog.silent()
    )
    here = resolve_runs(context, project.prepared, _ALONE, threads=1)
    specs = [run.spec for run in here]
    path = project.data.runs(name)
    table = read_rows(path, RUNS_SCHEMA)
    if missing := sorted(set(RUNS_SCHEMA.names) - set(table[0])) if table else []:
        findings.notes.append(f"{path}: has no columns {', '.join(missing)}; an earlier version wrote it")
    by_identity = _rows_by_identity(table, specs, path, findings)
    jobs = [json.loads(json.dumps(run.key.job)) if run.key else None for run in here]
    # The runs may be of another machine, where their keys have other fingerprints.
    runs = [
        replace(run, fingerprint=_fingerprint(by_identity.get(_identity(run.spec)), job, project, run.key))
        if run.key and job
        else run
        for run, job in zip(here, jobs, strict=True)
    ]
    ledger = StoredRuns(project.work.ledger, project.runs)
    n_test = len(project.prepared.test.labels)
    used = used_runs(context, runs, ledger, n_test)
    complete = True
    for i in used:
        spec, fingerprint, job = runs[i].spec, runs[i].fingerprint, jobs[i]
        row = by_identity.pop(_identity(spec), None)
        if row is None:
            findings.differs(path, f"run {described(spec)}", "missing", "one row")
        if job is None:
            continue
        recorded = project.runs.get(fingerprint)
        if recorded is None:
            if row is not None:
                findings.differs(
                    path, f"fingerprint of {described(spec)}", row["fingerprint"], "an entry of the ledger"
                )
            complete = False
            continue
        _check_job(recorded, job, spec, findings)
    for row in by_identity.values():
        findings.differs(path, f"run {_row_name(row)}", "in the table", "none, since the study is complete without it")
    trained = [
        StudyRun(study=name, spec=run.spec, rows=run.rows, fingerprint=run.fingerprint)
        for run in (runs[i] for i in used)
        if run.fingerprint in project.runs
    ]
    if not complete:
        return VerifiedStudy(runs=trained, tables=None)
    used_specs, used_keys = [specs[i] for i in used], [runs[i].fingerprint for i in used]
    results = [ledger.get(key) if key else None for key in used_keys]
    tables = study_tables(name, used_specs, used_keys, results)
    _check_tables(name, tables, project, findings)
    _check_best(name, used_specs, tables, project, findings)
    return VerifiedStudy(runs=trained, tables=tables)


def _rows_by_identity(
    table: Sequence[Row], specs: Sequence[RunSpec], path: Path, findings: Findings
) -> dict[tuple[Any, ...], Row]:
    """Return the rows that are runs of the study's grid; others are added to the findings."""
    grid = {_identity(spec) for spec in specs}
    found: dict[tuple[Any, ...], Row] = {}
    for row in table:
        identity = _row_identity(row)
        if identity not in grid:
            findings.differs(path, f"run {_row_name(row)}", "in the table", "none, since params.yaml has no such run")
        elif identity in found:
            findings.differs(path, f"run {_row_name(row)}", "in two rows", "one row")
        else:
            found[identity] = row
    return found


def _identity(spec: RunSpec) -> tuple[Any, ...]:
    settings = spec.settings
    return (
        settings.network, spec.arm, spec.filter_network, settings.batch_size, spec.learning_rate,
        settings.weight_decay, settings.seed,
    )  # fmt: skip


def _row_identity(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _IDENTITY)


def described(spec: RunSpec) -> str:
    """Return the few words that tell a run from the others of its study."""
    return _run_name(_identity(spec))


def _row_name(row: Row) -> str:
    return _run_name(_row_identity(row))


def _run_name(identity: tuple[Any, ...]) -> str:
    model, arm, network, batch_size, learning_rate, weight_decay, seed = identity
    return f"{model} {arm} of {network}, batch {batch_size}, lr {learning_rate:g}, wd {weight_decay:g}, seed {seed}"


def _fingerprint(row: Row | None, job: Mapping[str, Any], project: Project, key: RunKey) -> str:
    """Return the fingerprint of a run in the record: that of its row, or of an entry with its job, or else of `key`."""
    if row is not None and row["fingerprint"] in project.runs:
        return str(row["fingerprint"])
    for run in project.runs.values():
        if run.key is not None and not list(_job_differences(run.key.job, job)):
            return run.fingerprint
    return key.fingerprint


def _check_job(run: StoredRun, job: Mapping[str, Any], spec: RunSpec, findings: Findings) -> None:
    """Compare the key of a recorded run with what params.yaml, the filter's tables and the images say."""
    if run.key is None:
        if run.settings is not None and run.settings != spec.settings:
            recorded = json.loads(json.dumps(dataclasses.asdict(run.settings)))
            for item, value, expected in _settings_differences(recorded, job["settings"]):
                findings.differs(run.folder, f"{item} of {described(spec)}", value, expected)
        return
    for item, value, expected in _job_differences(run.key.job, job):
        findings.differs(run.folder / "identity.json", f"{item} of {described(spec)}", value, expected)
    for record in run.result.history:
        epoch = record.examples / spec.n_train
        if not math.isclose(record.epoch, epoch, rel_tol=1e-9):
            findings.differs(run.folder, f"epoch at step {record.step}", record.epoch, epoch)


def _job_differences(job: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield item, value and expected value; the version of the code is no part of what was asked for."""
    for part, name in _PARTS.items():
        if job.get(part) != expected.get(part):
            yield name, str(job.get(part, "none"))[:16], str(expected.get(part, "none"))[:16]
    settings = job.get("settings")
    yield from _settings_differences(settings if isinstance(settings, Mapping) else {}, expected["settings"])


_DEFAULTS = {
    field.name: field.default for field in dataclasses.fields(TrainSettings) if field.default is not dataclasses.MISSING
}


def _settings_differences(settings: Row, expected: Row) -> Iterator[tuple[str, Any, Any]]:
    # An earlier version recorded no settings that it lacked; they have their defaults.
    recorded = {**{name: value for name, value in _DEFAULTS.items() if value != ()}, "batch_stages": [], **settings}
    expected = {**NEWER, **expected}
    for name in dict.fromkeys([*expected, *recorded]):
        if recorded.get(name) != expected.get(name):
            yield name, recorded.get(name), expected.get(name)


def _check_tables(name: str, tables: StudyTables, project: Project, findings: Findings) -> None:
    """Compare the files in data/train with the tables derived from the record."""
    paths = project.data
    recorded = {_row_identity(row): row for row in read_rows(paths.runs(name), RUNS_SCHEMA)}
    n_values = 0
    derived_rows = tables.runs.to_pylist()
    for row in derived_rows:
        found = recorded.get(_row_identity(row), {})
        n_values += _compare_row(found, row, paths.runs(name), _row_name(row), findings) if found else 0
    order = [row["fingerprint"] for row in recorded.values()]
    if len(order) == len(derived_rows) and order != [row["fingerprint"] for row in derived_rows]:
        findings.wrong(paths.runs(name), "its rows are not in the order of the grid")
    history = read_rows(paths.history(name), HISTORY_SCHEMA)
    curves = tables.history.to_pylist()
    if len(history) != len(curves):
        findings.differs(paths.history(name), "rows", len(history), len(curves))
    for value, expected in zip(history, curves, strict=False):
        where = f"run {expected['fingerprint']}, step {expected['step']}"
        n_values += _compare_row(value, expected, paths.history(name), where, findings)
    correct = open_array(paths.correct(name), dtype=np.bool_, ndim=2)
    if correct.shape != tables.correct.shape:
        findings.differs(paths.correct(name), "shape", correct.shape, tables.correct.shape)
    else:
        for row, value, answers in zip(derived_rows, correct, tables.correct, strict=True):
            if n_wrong := int((value != answers).sum()):
                findings.differs(paths.correct(name), f"answers of {_row_name(row)} that differ", n_wrong, 0)
    if paths.train_metrics(name).exists():
        metrics = read_untrusted_json(paths.train_metrics(name), may_be_link=True)
        complete = {**dict.fromkeys(tables.accuracies), **metrics}
        n_values += _compare_row(complete, tables.accuracies, paths.train_metrics(name), "top-1", findings)
    findings.checked.append(f"study {name}: {len(derived_rows)} runs, {n_values} values of its tables")


def _compare_row(row: Row, expected: Row, path: Path, where: str, findings: Findings) -> int:
    """Compare the values that a row has; returns their number."""
    compared = {key: value for key, value in expected.items() if key in row}
    for key, value in compared.items():
        if not same_value(row[key], value):
            findings.differs(path, f"{key} of {where}", row[key], value)
    return len(compared)


def same_value(value: Any, expected: Any) -> bool:
    """Return whether two plain values agree: numbers to 9 digits, since libraries round sums differently."""
    numbers = isinstance(value, int | float) and isinstance(expected, int | float)
    if numbers and not isinstance(value, bool) and not isinstance(expected, bool):
        return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)
    return bool(value == expected)


def _check_best(name: str, specs: Sequence[RunSpec], tables: StudyTables, project: Project, findings: Findings) -> None:
    """Check that the published network is one of the kept networks of the first seed."""
    best = project.data.trained_weights(name)
    kept = [
        project.work.ledger / row["fingerprint"] / "weights.pt"
        for spec, row in zip(specs, tables.runs.to_pylist(), strict=True)
        if row["status"] == "finished" and spec.settings.seed == specs[0].settings.seed
    ]
    kept = [path for path in kept if path.exists()]
    if not best.exists() or not kept or not project.has_ledger:
        return
    if project.params.studies[name].keep_weights == "none":
        return
    digest = sha256_of_file(best)
    if digest not in {sha256_of_file(path) for path in kept}:
        findings.differs(best, "SHA-256", digest, "that of a network of the first seed in the ledger")


def check_leftovers(project: Project, studies: Mapping[str, VerifiedStudy], findings: Findings) -> None:
    """Note recorded runs that no table uses; of a study's own settings with other seeds, by name."""
    used = {run.fingerprint for study in studies.values() for run in study.runs}
    spare = [run for run in project.runs.values() if run.fingerprint not in used and run.settings is not None]
    for name, study in studies.items():
        grid = {_without_seed(run.spec.settings) for run in study.runs}
        seeds = Counter(run.settings.seed for run in spare if run.settings and _without_seed(run.settings) in grid)
        unplanned = sorted(set(seeds) - set(project.params.studies[name].seeds))
        if unplanned:
            findings.later.append(
                f"{project.work.ledger}: {sum(seeds[seed] for seed in unplanned)} runs with the settings of study "
                f"{name} and seeds {shown(unplanned)}, which its plan does not have"
            )
    if spare:
        findings.notes.append(f"{project.work.ledger}: {len(spare)} runs are in no table of {project.file}")


def _without_seed(settings: TrainSettings) -> str:
    return json.dumps({**dataclasses.asdict(settings), "seed": None}, sort_keys=True)
