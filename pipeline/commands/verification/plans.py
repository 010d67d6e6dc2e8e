"""Hold the plans of the studies, which were stated before the runs, against params.yaml and the dates of the runs."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.artifacts.foreign import read_foreign_json
from pipeline.artifacts.plans import RegisteredPlan, read_registered_plans, read_run_dates
from pipeline.commands.verification.findings import Findings
from pipeline.commands.verification.recorded import Project
from pipeline.commands.verification.studies import VerifiedStudy
from pipeline.config.study import build_plan, diff_plans, plan_hash
from pipeline.errors import InputError

_MAX_BYTES = 1_000_000


def check_plans(
    project: Project, studies: Mapping[str, VerifiedStudy], findings: Findings, *, published: Sequence[str] = ()
) -> None:
    """Check the statements of all studies.

    Args:
        studies: those whose runs could be read.
        published: first digits of hashes that were published before the runs; each must be that of a study's first
            statement.
    """
    first_hashes = {}
    for name in project.params.studies:
        folder = project.work.plans(name)
        with findings.collecting_errors(folder):
            statements = _read_statements(folder, findings)
            dates = read_run_dates(folder)
            _check_dates(name, project, studies.get(name), dates, findings)
            if statements:
                first_hashes[name] = statements[0].sha256
                _check_statements(name, project, statements, dates, findings)
            elif any(dates.values()) or _recorded_dates(project, studies.get(name)):
                findings.wrong(folder, "no stated plan, and its runs are of a version that states plans before them")
            else:
                findings.notes.append(f"{folder}: no stated plan; its runs are of a version without plans")
    for digits in published:
        if not any(digest.startswith(digits) for digest in first_hashes.values()):
            found = ", ".join(f"{digest[:12]} of {name}" for name, digest in first_hashes.items()) or "none"
            findings.differs(project.work.plans_folder, "first plan of a study", found, digits)


def _read_statements(folder: Path, findings: Findings) -> list[RegisteredPlan]:
    """Read a study's statements, and compare hash and file name of each with its content."""
    sound = True
    for path in sorted(folder.glob("2*.json")):
        record = read_foreign_json(path, max_bytes=_MAX_BYTES)
        if not isinstance(record, dict) or not isinstance(record.get("plan"), dict):
            raise InputError(f"{path}: not a stated plan; restore the file")
        digest = plan_hash(record["plan"])
        if record.get("sha256") != digest:
            findings.differs(path, "sha256", record.get("sha256"), digest)
            sound = False
        name = f"{str(record.get('date')).replace(':', '')}-{str(record.get('sha256'))[:12]}.json"
        if path.name != name:
            findings.differs(path, "file name", path.name, f"{name}, of its date and hash")
    return read_registered_plans(folder) if sound else []


def _recorded_dates(project: Project, study: VerifiedStudy | None) -> dict[str, str]:
    """Return the date in the ledger of each run of a study; runs without one are missing."""
    runs = [project.runs[run.fingerprint] for run in study.runs] if study else []
    return {run.fingerprint: run.result.recorded for run in runs if run.result.recorded is not None}


def _check_dates(
    name: str, project: Project, study: VerifiedStudy | None, dates: Mapping[str, str | None], findings: Findings
) -> None:
    """Compare the dates next to the plans, which the report shows, with those of the ledger's entries."""
    if not project.has_ledger or study is None:
        return
    path, recorded = project.work.plans(name) / "runs.json", _recorded_dates(project, study)
    for run in study.runs:
        key, expected = run.fingerprint, recorded.get(run.fingerprint)
        if key not in dates:
            findings.differs(path, f"date of run {key}", "missing", expected)
        elif dates[key] != expected and not _was_replaced(dates[key], expected):
            findings.differs(path, f"date of run {key}", dates[key], expected)


def _was_replaced(written: str | None, recorded: str | None) -> bool:
    """Return whether a run may have been recorded again since: another study that keeps its weights trains it again."""
    return recorded is not None and (written is None or written < recorded)


def _check_statements(
    name: str,
    project: Project,
    statements: Sequence[RegisteredPlan],
    dates: Mapping[str, str | None],
    findings: Findings,
) -> None:
    params = project.params
    plan = build_plan(name, params.studies[name], params.train, params.report)
    for change in diff_plans(statements[-1].plan, plan):
        stated = statements[-1].date[:10]
        findings.wrong(project.file, f"plan of study {name}, as stated {stated} and in this file: {change}")
    folder, first, n_runs = project.work.plans(name), statements[0].date, len(dates)
    if older := _recorded_before(dates, first):
        findings.later.append(f"{folder}: {older} of {n_runs} runs are older than the plan, stated {first}")
    for before, after in itertools.pairwise(statements):
        n_before = _recorded_before(dates, after.date)
        if n_before:
            changes = ", ".join(diff_plans(before.plan, after.plan))
            findings.later.append(f"{folder}: {changes}, stated {after.date} after {n_before} of {n_runs} runs")
    findings.checked.append(
        f"study {name}: plan {statements[0].sha256[:12]}, stated {first}"
        + (f", and {len(statements) - 1} changes of it" if len(statements) > 1 else "")
    )


def _recorded_before(dates: Mapping[str, str | None], date: str) -> int:
    return sum(recorded is None or recorded < date for recorded in dates.values())
