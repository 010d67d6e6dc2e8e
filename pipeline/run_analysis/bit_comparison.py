"""Compare two finished runs bit by bit: from which step they differ, in which tensors, and in which settings.

The evidence is what a run records: its hash chain (`hash_chain`), its history, its evaluation and its key. Two chains
are equal up to the first link that differs. The first group of tensors whose digest differs in that link names what
differs. History records lie between the links, and may show a difference earlier.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import InputError
from pipeline.runs.ledger import Ledger, RunResult, read_run_key
from pipeline.runs.record import check_checksums
from pipeline.training.hash_chain import SAMPLES, first_difference
from pipeline.training.run_key import RunKey
from pipeline.training.state import ChainLink, HistoryRecord

_RECORDED = ("lr", "train_loss", "top1", "test_loss", "examples", "epoch")
"""Quantities of a history record, in the order in which a difference is reported."""
_NAMES = {
    "lr": "the learning rate",
    "train_loss": "the training loss",
    "top1": "top-1 on the test images",
    "test_loss": "the test loss",
    "examples": "the number of images",
    "epoch": "the number of images in an epoch",
}
_JOB_PARTS = {
    "data": "images and labels of the data",
    "members": "images trained on",
    "labels": "labels changed for training",
    "code": "training code",
}
# A setting whose effective value is in the machine's part of the key.
_ALSO_OF_MACHINE = "threads"


class RecordedRun(NamedTuple):
    """A finished run as it was recorded."""

    key: RunKey
    result: RunResult


class Difference(NamedTuple):
    """A recorded fact of two runs that differs; texts as a message shows them."""

    name: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.name} ({self.a}, {self.b})"


@dataclass(frozen=True, kw_only=True)
class BitComparison:
    """Two runs compared.

    Attributes:
        equal_through: the last step at which the chains were recorded and equal; 0 without one.
        differ_at: the first step at which a record differs, None if none does.
        where: what differs there; empty if nothing does.
        settings: facts that differ and may change bits.
        without_effect: facts that differ and change no bit, by the reduction of both.
    """

    equal_through: int
    differ_at: int | None
    where: str
    settings: tuple[Difference, ...]
    without_effect: tuple[Difference, ...]


def read_recorded_run(folder: Path) -> RecordedRun:
    """Read a finished run from its folder.

    Raises:
        InputError: a file is missing or damaged, or the run has no hash chain.
    """
    # The folder is named after the run; a relative path may hide the name.
    folder = folder.resolve()
    # Weights are no evidence here, and an archive of results has none.
    check_checksums(folder, may_lack_weights=True)
    run = RecordedRun(read_run_key(folder), Ledger(folder.parent).get(folder.name))
    if not run.result.links:
        raise InputError(
            f"{folder}: has no hash chain, since an earlier version of the code trained it; train it again"
        )
    return run


def compare_bits(a: RecordedRun, b: RecordedRun) -> BitComparison:
    """Compare two runs by their records."""
    equal_through, chain = _first_in_chains(a.result.links, b.result.links)
    records = _first_in_histories(a.result.history, b.result.history)
    last = max(a.result.history[-1].step, b.result.history[-1].step)
    found = [first for first in (chain, records, _in_evaluation(a.result, b.result, last)) if first is not None]
    # At equal steps the chain comes first: it names tensors, and a record only a number.
    differ_at, where = min(found, key=lambda first: first[0]) if found else (None, "")
    differences = [*_job_differences(a, b), *_machine_differences(a, b), *_process_differences(a, b)]
    harmless = {"processes", "images in a pass", "trained on"} if _reductions(a, b) == {"exact"} else set()
    return BitComparison(
        equal_through=equal_through,
        differ_at=differ_at,
        where=where,
        settings=tuple(one for one in differences if one.name not in harmless),
        without_effect=tuple(one for one in differences if one.name in harmless),
    )


def _first_in_chains(a: tuple[ChainLink, ...], b: tuple[ChainLink, ...]) -> tuple[int, tuple[int, str] | None]:
    """Return the step of the last equal link; and the step of the first link that differs, with what differs in it."""
    diverged = first_difference(a, b)
    if diverged is None:
        return a[-1].step, None
    equal_through, step = diverged
    one, other = ({link.step: link for link in chain}.get(step) for chain in (a, b))
    if one and other:
        return equal_through, (step, _first_group(one, other))
    ends_before = min(a[-1].step, b[-1].step) < step
    return equal_through, (step, "the number of steps" if ends_before else "the steps of the hash chain")


def _first_group(one: ChainLink, other: ChainLink) -> str:
    for (name, digest), (other_name, other_digest) in zip(one.groups, other.groups, strict=False):
        if name != other_name:
            return f"{name} of one and {other_name} of the other"
        if digest != other_digest:
            return f"the {SAMPLES}" if name == SAMPLES else f"the {name}"
    return "the state, without groups of tensors, which an earlier version of the code did not record"


def _first_in_histories(a: tuple[HistoryRecord, ...], b: tuple[HistoryRecord, ...]) -> tuple[int, str] | None:
    """Return step and quantity of the first record that differs, of the steps that both recorded."""
    others = {record.step: record for record in b}
    for record in a:
        other = others.get(record.step)
        for name in _RECORDED:
            if other is not None and getattr(record, name) != getattr(other, name):
                return record.step, _NAMES[name]
    return None


def _in_evaluation(a: RunResult, b: RunResult, step: int) -> tuple[int, str] | None:
    if a.status != b.status:
        return step, "the end: one of them diverged"
    if a.loss != b.loss or a.top1 != b.top1 or _answers(a) != _answers(b):
        return step, "the evaluation of the test images"
    if a.critical_batch != b.critical_batch or a.skipped_steps != b.skipped_steps:
        return step, "the gradient noise scale or the skipped steps"
    return None


def _answers(result: RunResult) -> list[bool] | None:
    """Return which test images are classified correctly; None for a run that diverged."""
    return None if result.correct is None else result.correct.tolist()


def _reductions(*runs: RecordedRun) -> set[str]:
    return {str(run.key.job.get("settings", {}).get("reduction")) for run in runs}


def _job_differences(a: RecordedRun, b: RecordedRun) -> Iterator[Difference]:
    for part, name in _JOB_PARTS.items():
        one, other = (run.key.job.get(part) for run in (a, b))
        if one != other:
            yield Difference(name, *("none" if value is None else str(value)[:12] for value in (one, other)))
    settings = [_flat(run.key.job.get("settings", {})) for run in (a, b)]
    for one in _differences(*settings):
        if one.name != _ALSO_OF_MACHINE:
            yield one


def _machine_differences(a: RecordedRun, b: RecordedRun) -> Iterator[Difference]:
    """Compare the machines that trained the runs, which the key of an imported run does not have."""
    machines = [dict(run.result.imported_from or run.key.machine) for run in (a, b)]
    yield from _differences(*machines)


def _process_differences(a: RecordedRun, b: RecordedRun) -> Iterator[Difference]:
    """Compare the processes; of an interrupted run, all that it was trained on."""
    facts: list[dict[str, Any]] = [
        {"processes": run.result.workers, "images in a pass": run.result.micro_batch} for run in (a, b)
    ]
    if len(a.result.hardware) > 1 or len(b.result.hardware) > 1:
        facts = [{"trained on": "; ".join(run.result.hardware)} for run in (a, b)]
    yield from _differences(*facts)


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            yield Difference(name, str(one.get(name)), str(other.get(name)))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as `optimizer_options.momentum`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
