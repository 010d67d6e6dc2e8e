"""Check each recorded run against its own settings and the test labels, and runs against each other."""

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.commands.verification.findings import Findings
from pipeline.commands.verification.recorded import Project, StoredRun
from pipeline.training import hash_chain
from pipeline.training.code_families import code_name
from pipeline.training.run_key import training_code_digest
from pipeline.training.settings import TrainSettings

_DECIDES_BITS = ("network", "seed", "batch_size", "learning_rate", "weight_decay")
"""Settings of which another value gives another chain; others, such as evaluations, change no weight."""
_IMAGES_AND_LABELS = ("members", "labels")


def check_runs(project: Project, findings: Findings) -> None:
    """Check every recorded run: accuracy, curve, hash chain, and that no two are one training."""
    for run in project.runs.values():
        with findings.collecting_errors(run.folder):
            _check_accuracy(run, project, findings)
            if run.settings is not None:
                _check_steps(run, run.settings, findings)
    with findings.collecting_errors(project.work.ledger):
        for one, other, what in _twins(project.runs):
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
    if run.key is None or not result.links or not is_of_this_code(run):
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


def is_of_this_code(run: StoredRun) -> bool:
    """Return whether code of the family of today's trained the run."""
    if run.key is None:
        return False
    settings: Mapping[str, object] = run.key.job.get("settings", {})
    try:
        return code_name(str(run.key.job.get("code")), settings) == code_name(training_code_digest(), settings)
    except AttributeError:
        return False


def _twins(runs: Mapping[str, StoredRun]) -> Iterator[tuple[StoredRun, StoredRun, str]]:
    """Yield pairs of finished runs that say they are different trainings and have equal bits.

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
    return _deciding(first, images=whole_epochs) != _deciding(other, images=whole_epochs)


def _deciding(run: StoredRun, *, images: bool) -> str:
    if run.key is None:
        values = {name: getattr(run.settings, name) for name in _DECIDES_BITS} if run.settings else {}
        return json.dumps(values)
    job = run.key.job
    settings = job.get("settings", {})
    parts = ("data", *_IMAGES_AND_LABELS) if images else ("data",)
    return json.dumps([[settings.get(name) for name in _DECIDES_BITS], [job.get(part) for part in parts]])


def _named(run: StoredRun) -> str:
    settings = run.settings
    return f"batch {settings.batch_size}, seed {settings.seed}" if settings else "settings of another version"


def _close(value: float | None, expected: float) -> bool:
    return value is not None and math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)
