"""The ledger of finished runs, `.work/cells`, by run key: no run in it is trained again."""

import dataclasses
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import write_array, write_json
from pipeline.artifacts.prepared import PreparedData
from pipeline.artifacts.replaced import restore_replaced
from pipeline.energy import UNKNOWN_ENERGY, Energy
from pipeline.errors import InputError
from pipeline.runs.record import (
    check_against_labels,
    check_bounded,
    check_checksums,
    damaged,
    is_whole,
    read_record,
    read_small_json,
    same_result,
    write_checksums,
)
from pipeline.training.run_key import RunKey
from pipeline.training.state import ChainLink, HistoryRecord
from pipeline.training.weights import TrainedNetwork, load_trained

# Stored in a separate file, since it differs between equal results.
_TIMING = ("seconds", "joules", "recorded")
_KEY_MISMATCH = "identity.json is not that of this entry"


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        correct: (n_test,) bool; None if the run diverged.
        workers: processes that finished it.
        hardware: what it ran on, in order; more than one if it was interrupted and resumed elsewhere.
        skipped_steps: steps skipped for a non-finite gradient.
        micro_batch: samples that passed forward together, at most.
        critical_batch: in images, with its interval, if the gradient noise scale was sampled.
        links: its hash chain, see `hash_chain`; empty where an earlier version of the code trained it.
        imported_from: the machine that trained it, if another.
        seconds: wall time; stored in a separate file.
        joules: energy that the devices of all ranks used; stored separately. Unknown for a run resumed from an earlier
            process, whose part was not measured.
        recorded: when the run ended, UTC, as `2026-11-23T18:45:12.000000Z`; stored separately. None in entries of
            versions without stated plans.
    """

    status: Literal["finished", "diverged"]
    top1: float | None
    balanced_accuracy: float | None
    loss: float | None
    history: tuple[HistoryRecord, ...]
    correct: NDArray[np.bool_] | None
    workers: int
    hardware: tuple[str, ...]
    skipped_steps: int
    micro_batch: int
    critical_batch: Mapping[str, float | int | str | None] | None
    links: tuple[ChainLink, ...] = ()
    imported_from: Mapping[str, Any] | None = None
    seconds: float
    joules: Energy = UNKNOWN_ENERGY
    recorded: str | None = None

    @property
    def outcome(self) -> str:
        """Accuracy and time: "top-1 0.9123 in 3.2 s"; the status instead of an accuracy that is unknown."""
        return f"{f'top-1 {self.top1:.4f}' if self.top1 is not None else self.status} in {self.seconds:.1f} s"


class Ledger:
    """The finished runs under one folder, one folder per run key.

    A run's folder appears by a single rename, so a killed process leaves a complete entry or none.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, key: str, *, with_weights: bool = False) -> bool:
        """Return whether a run is finished; a diverged run never has weights."""
        if not (self._root / key).is_dir():
            return False
        return not with_weights or self.weights(key).exists() or self.get(key).status == "diverged"

    def folder(self, key: str) -> Path:
        """Return the folder of a run."""
        return self._root / key

    def weights(self, key: str) -> Path:
        """Return the path of a run's weights, if they were kept."""
        return self._root / key / "weights.pt"

    def add(self, run_key: RunKey, result: RunResult, weights: Path | None = None) -> None:
        """Add a run and move `weights` into its folder; replaces an older entry."""
        key = run_key.fingerprint
        building, replaced = (self._root / f".{key}.{part}{os.getpid()}.tmp" for part in ("", "old."))
        # In a container a killed process had the same id.
        for leftover in (building, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            self._build(building, run_key, result, weights)
        except BaseException:
            # On a full disk the files of a failed entry would take the room that the next one needs.
            shutil.rmtree(building, ignore_errors=True)
            raise
        # Renames only, so that no reader sees an incomplete entry.
        if (self._root / key).exists():
            (self._root / key).rename(replaced)
        building.rename(self._root / key)
        shutil.rmtree(replaced, ignore_errors=True)

    def _build(self, folder: Path, run_key: RunKey, result: RunResult, weights: Path | None) -> None:
        """Write the files of an entry to a new folder."""
        folder.mkdir(parents=True)
        record = dataclasses.asdict(result)
        record.pop("correct")
        record["places"] = record.pop("hardware")  # the key of stored runs
        write_json(folder / "timing.json", {name: record.pop(name) for name in _TIMING})
        if result.correct is not None:
            write_array(folder / "correct.npy", result.correct)
        if weights is not None:
            shutil.move(weights, folder / "weights.pt")
        write_json(folder / "result.json", record)
        write_json(folder / "identity.json", dataclasses.asdict(run_key))
        write_checksums(folder)

    def run_keys(self, *, to_import: bool = False) -> Iterator[RunKey]:
        """Yield the keys of all entries, in the order of their names.

        Args:
            to_import: whether the entries are those of another machine, which an error says how to repair.

        Raises:
            InputError: an entry is damaged, or is not under its key.
        """
        for folder in sorted(path for path in self._root.glob("[0-9a-f]*") if path.is_dir()):
            with _of_another_machine(folder) if to_import else nullcontext():
                run_key = _read_named_key(folder)
            yield run_key

    def import_run(
        self, other: "Ledger", run_key: RunKey, local_key: RunKey, *, labels: NDArray[np.int64] | None = None
    ) -> bool:
        """Copy the entry `run_key` of `other` under `local_key`, its key on this machine; returns whether it was new.

        Weights may be missing, though the entry was recorded with them.

        Args:
            labels: (n_test,), of the test images that the run was evaluated on; None if they are not known here.

        Raises:
            InputError: the entry is damaged, too large, contradicts `labels`, or has another result than the one here.
        """
        weights = other.weights(run_key.fingerprint) if other.weights(run_key.fingerprint).exists() else None
        if self.has(local_key.fingerprint, with_weights=weights is not None):
            return False
        folder = other.folder(run_key.fingerprint)
        with _of_another_machine(folder):
            check_checksums(folder, may_lack_weights=True)
            result = other.get(run_key.fingerprint)
            if labels is not None:
                _check_evaluation(folder, result, labels)
            if weights is not None:
                check_bounded(weights)
        if self.has(local_key.fingerprint):
            result = same_result(self.folder(local_key.fingerprint), self.get(local_key.fingerprint), folder, result)
        elif run_key.machine != local_key.machine and result.imported_from is None:
            result = replace(result, imported_from=run_key.machine)
        if weights is None:
            self.add(local_key, result)
            return True
        self._root.mkdir(parents=True, exist_ok=True)
        copy = self._root / f".{local_key.fingerprint}.weights.{os.getpid()}.tmp"
        try:
            # The copy is checked, since the owner of the other folder may replace the file meanwhile.
            shutil.copyfile(weights, copy)
            with _of_another_machine(folder):
                _check_weights(copy, source=weights)
            self.add(local_key, result, copy)
        finally:
            copy.unlink(missing_ok=True)
        return True

    def get(self, key: str) -> RunResult:
        """Load the result of a run.

        Raises:
            InputError: the entry is damaged.
        """
        folder = self._root / key
        record, timing, correct = read_record(folder)
        history = tuple(HistoryRecord(**entry) for entry in record.pop("history"))
        links = tuple(_as_link(entry) for entry in record.pop("links"))
        # Entries of earlier versions lack energy and date.
        timing["joules"] = Energy.from_record(timing["joules"])
        hardware = tuple(record.pop("places"))
        return RunResult(**record, **timing, history=history, links=links, hardware=hardware, correct=correct)

    def restore_replaced(self) -> list[str]:
        """Rename entries back that a process was replacing when it was killed; returns a line for each."""
        folders = restore_replaced(self._root, is_whole)
        return [f"{folder}: restored: a process was killed while it replaced it" for folder in folders]

    def set_aside_damaged(self, keys: Iterable[str], labels: NDArray[np.int64]) -> list[str]:
        """Move the damaged entries among `keys` into the folder `set-aside`, so that they are trained again.

        Args:
            labels: (n_test,), of the test images that the runs were evaluated on.

        Returns:
            A line for each, with the reason and the new folder.
        """
        lines = []
        for folder in [self._root / key for key in keys]:
            if not folder.exists():
                continue
            try:
                # Missing weights are no damage: a study that needs them trains the run again.
                check_checksums(folder, may_lack_weights=True)
                _read_named_key(folder)
                _check_evaluation(folder, self.get(folder.name), labels)
            except InputError as error:
                aside = self._root / "set-aside"
                aside.mkdir(exist_ok=True)
                free = next(name for n in itertools.count() if not (name := aside / f"{folder.name}-{n}").exists())
                folder.rename(free)
                reason = str(error).partition(": ")[2].partition("; ")[0]
                lines.append(f"{folder}: {reason}; moved to {free}, and trained again")
        return lines


@contextmanager
def _of_another_machine(folder: Path) -> Iterator[None]:
    """Replace the fix of errors about an entry: no command here repairs the folder of another machine."""
    try:
        yield
    except InputError as error:
        problem = str(error).rpartition("; ")[0] or str(error)
        raise InputError(f"{problem}; copy the run again, or delete {folder} and import again") from None


def _check_evaluation(folder: Path, result: RunResult, labels: NDArray[np.int64]) -> None:
    """Check a result against the labels (n_test,) of its test images; a diverged run has none."""
    if result.correct is not None and result.balanced_accuracy is not None:
        check_against_labels(folder, result.correct, result.balanced_accuracy, labels)


def _check_weights(copy: Path, *, source: Path) -> None:
    """Check that a weights file is whole and holds no code; errors name `source`, of which it is a copy."""
    try:
        load_trained(copy)
    except InputError as error:
        raise InputError(str(error).replace(str(copy), str(source))) from None


def _as_link(entry: Mapping[str, Any]) -> ChainLink:
    groups = tuple((name, digest) for name, digest in entry["groups"])
    return ChainLink(step=entry["step"], sha256=entry["sha256"], groups=groups)


def read_run_key(folder: Path) -> RunKey:
    """Read the key of a run from its folder, under any name.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        run_key = RunKey(**read_small_json(folder / "identity.json"))
        plain = isinstance(run_key.job, dict) and isinstance(run_key.machine, dict)
        whole = plain and _is_settings(run_key.job.get("settings", {}))
    except TypeError:
        whole = False
    if not whole:
        raise damaged(folder, _KEY_MISMATCH)
    return run_key


def _is_settings(settings: Any) -> bool:
    """Return whether `settings` is an object, and what `runs import` reads of it has the type that it needs."""
    if not isinstance(settings, dict):
        return False
    threads, precision = settings.get("threads"), settings.get("precision", "")
    return isinstance(precision, str) and (threads is None or (type(threads) is int and threads > 0))


def _read_named_key(folder: Path) -> RunKey:
    run_key = read_run_key(folder)
    if run_key.fingerprint != folder.name:
        raise damaged(folder, _KEY_MISMATCH)
    return run_key


def has_network(run: Mapping[str, Any], ledger: Ledger) -> bool:
    """Return whether a run, a row of data/train/<study>.parquet, finished and the ledger has its weights."""
    return run["status"] == "finished" and ledger.weights(run["fingerprint"]).exists()


def load_network(run: Mapping[str, Any], ledger: Ledger, data: PreparedData, *, study: str) -> TrainedNetwork:
    """Load the network of a run for which `has_network` is true, on the CPU.

    Entries of earlier versions have no checksums: of these a network of another architecture, other classes or another
    image size is found.

    Raises:
        InputError: a file of the entry has changed, or is that of another run.
    """
    folder, path = ledger.folder(run["fingerprint"]), ledger.weights(run["fingerprint"])
    again = f"run `python -m pipeline.stages.train --study {study}`, which trains this run again"
    try:
        check_checksums(folder)
        key = read_run_key(folder)
        trained = load_trained(path)
    except InputError as error:
        raise InputError(f"{folder}: {_reason(error, folder, path)}; {again}") from None
    if key.fingerprint != folder.name:
        raise InputError(f"{folder}: is the entry of run {key.fingerprint}; {again}")
    expected = {"network": run["model"], "class_names": data.class_names, "image_size": data.image_size}
    found = {
        "network": trained.network, "class_names": trained.class_names, "image_size": trained.format.image_size,
    }  # fmt: skip
    for name, value in expected.items():
        if found[name] != value:
            shown = f"{name} {_short(found[name])}, and the run has {_short(value)}"
            raise InputError(f"{path}: has {shown}; remove {folder} and {again}")
    return trained


def _reason(error: InputError, folder: Path, path: Path) -> str:
    """Return what is wrong, without the name of the file, which comes first, and the advice of a reader of any file."""
    text = str(error).removeprefix(f"{folder}: ")
    return text.replace(str(path), path.name).partition("; ")[0]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
