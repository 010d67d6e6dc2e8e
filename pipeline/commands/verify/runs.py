"""Check what is recorded without training: runs and plans.

Each run is checked against its own settings and the test labels, and runs against each other. The plans of the studies
are checked against params.yaml and the dates of the runs.
"""

import itertools
import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pipeline.artifacts.plans import RegisteredPlan, read_registered_plans, read_run_dates
from pipeline.artifacts.untrusted import read_untrusted_json
from pipeline.commands.verify.findings import Findings
from pipeline.commands.verify.recorded import Project, StoredRun
from pipeline.commands.verify.studies import VerifiedStudy
from pipeline.config.study_plan import build_plan, diff_plans, plan_hash
from pipeline.errors import InputError
from pipeline.stats.formatting import plural
from pipeline.training import hash_chain
from pipeline.training.run_key import matches_current_code
from pipeline.training.settings import TrainSettings

_DECIDES_BITS = ("network", "seed", "batch_size", "learning_rate", "weight_decay")
"""Settings of which another value gives another chain; others, such as evaluations, change no weight."""
_IMAGES_AND_LABELS = ("members", "labels")

_MAX_BYTES = 1_000_000


def check_runs(project: Project, findings: Findings) -> None:
    """Check every recorded run: accuracy, curve, hash chain, and that no two are one training."""
    for run in project.runs.values():
        with findings.collecting_errors(run.folder):
            _check_accuracy(run, project, findings)
            if run.settings is not None:
                _check_steps(run, run.settings, findings)
    with findings.collecting_errors(project.work.ledger):
        for one, other, what in _equal_trainings(project.runs):
            value = f"that of run {one.fingerprint}, {_named(one)}"
            findings.differs(other.folder, f"{what} of run {other.fingerprint}, {_named(other)}", value, "its own")
    if n_without := sum(not run.result.links for run in project.runs.values()):
        findings.notes.append(f"{n_without} runs have no hash chain, as an earlier version recorded them")
    kind = "the ledger" if project.has_ledger else "the tables"
    findings.checked.append(
        f"{len(project.runs)} runs of {kind}: accuracies against test answers, curves and hash chains against "
        "settings, runs against each other"
    )


def _check_accuracy(run: StoredRun, project: Project, findings: Findings) -> None:
    result, labels = run.result, project.prepared.test.labels
    if result.correct is None or (run.key is not None and run.key.job.get("data") != project.data_digest):
        return  # it diverged, or was evaluated on other images, which `check_studies` reports
    if len(result.correct) != len(labels):
        findings.differs(run.folder, "test images in correct.npy", len(result.correct), len(labels))
        return
    measured = {
        "top1": float(result.correct.mean()),
        "balanced_accuracy": float(np.mean([result.correct[labels == label].mean() for label in np.unique(labels)])),
    }
    for name, expected in measured.items():
        if not _close(getattr(result, name), expected):
            findings.differs(run.folder, name, getattr(result, name), expected)


def _check_steps(run: StoredRun, settings: TrainSettings, findings: Findings) -> None:
    """Check the steps of curve and hash chain, which the settings alone decide."""
    result, sizes = run.result, settings.batch_sizes
    last = result.history[-1].step
    if last > settings.steps or (result.status == "finished" and last < settings.steps):
        findings.differs(run.folder, "last step of the curve", last, settings.steps)
        return
    for record in result.history:
        expected = {"examples": sizes.examples(record.step), "lr": settings.lr_at(record.step - 1)}
        for name, value in expected.items():
            if not _close(getattr(record, name), value):
                findings.differs(run.folder, f"{name} at step {record.step}", getattr(record, name), value)
    # Another family may have had links at other steps. A table has the last link alone.
    if run.key is None or not result.links or not matches_current_code(run.key):
        return
    # A run that diverges at a step with a link has two of them.
    steps = [*link_steps(settings, last), last]
    if (found := [link.step for link in result.links]) != steps:
        findings.differs(run.folder, "steps of the hash chain", found, steps)


def link_steps(settings: TrainSettings, last: int) -> list[int]:
    """Return the steps from 1 to `last` at which a link is due, at most `MAX_LINKS`; `last` is in the run.

    Searches them, since a record can claim more steps than anyone can count.
    """
    sizes = settings.batch_sizes
    spacing = max(hash_chain.LINK_EXAMPLES, math.ceil(sizes.examples(settings.steps) / hash_chain.MAX_LINKS))
    multiples = range(spacing, sizes.examples(last) + 1, spacing)
    steps = dict.fromkeys(bisect_left(range(last + 1), multiple, key=sizes.examples) for multiple in multiples)
    return [step for step in steps if hash_chain.link_is_due(settings, step)]


def _equal_trainings(runs: Mapping[str, StoredRun]) -> Iterator[tuple[StoredRun, StoredRun, str]]:
    """Yield pairs of finished runs that are recorded as different trainings and have equal bits.

    A link of the chain hashes sample ids and weights, and each loss is a float64: two trainings share neither. Runs on
    other images or labels may be one training if they end before an epoch does, since arms draw in one order and the
    images in which they differ may come later. Only the first pair is yielded for a run.
    """
    found = set()
    for what in ("hash chain", "training curve"):
        groups = defaultdict(list)
        for run in runs.values():
            if run.result.status == "finished" and (trace := _trace(run, what)):
                groups[trace].append(run)
        for first, *others in groups.values():
            for other in others:
                if _differ(first, other) and other.fingerprint not in found:
                    found.add(other.fingerprint)
                    yield first, other, what


def _trace(run: StoredRun, what: str) -> str:
    result = run.result
    if what == "hash chain":
        return result.links[-1].sha256 if result.links else ""
    if len(result.history) < 2:
        return ""  # rate and weight decay change no loss before the second step
    return json.dumps([result.loss, [record.train_loss for record in result.history]])


def _differ(first: StoredRun, other: StoredRun) -> bool:
    """Return whether what decides the bits of two runs on any machine is different."""
    whole_epochs = all(run.result.history[-1].epoch >= 1 for run in (first, other))
    if _deciding(first, images=whole_epochs) != _deciding(other, images=whole_epochs):
        return True
    one, two = first.key, other.key
    if one is None or two is None:
        return False
    # Files of other bytes may hold the same images and labels.
    return one.job.get("data") != two.job.get("data") and (not one.content or one.content != two.content)


def _deciding(run: StoredRun, *, images: bool) -> str:
    if run.key is None:
        values = {name: getattr(run.settings, name) for name in _DECIDES_BITS} if run.settings else {}
        return json.dumps(values)
    job = run.key.job
    settings = job.get("settings", {})
    parts = _IMAGES_AND_LABELS if images else ()
    return json.dumps([[settings.get(name) for name in _DECIDES_BITS], [job.get(part) for part in parts]])


def _named(run: StoredRun) -> str:
    settings = run.settings
    return f"batch {settings.batch_size}, seed {settings.seed}" if settings else "settings of another version"


def _close(value: float | None, expected: float) -> bool:
    return value is not None and math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)


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
        record = read_untrusted_json(path, max_bytes=_MAX_BYTES)
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
        + (f", changed {plural(len(statements) - 1, 'time')} since" if len(statements) > 1 else "")
    )


def _recorded_before(dates: Mapping[str, str | None], date: str) -> int:
    return sum(recorded is None or recorded < date for recorded in dates.values())
