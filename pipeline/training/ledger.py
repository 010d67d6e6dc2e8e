"""Finished cells on disk, one folder per fingerprint. What is in the ledger is never trained again."""

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.energy import UNTOLD, Energy
from pipeline.errors import InputError
from pipeline.training.fingerprint import Identity
from pipeline.training.state import Link, Record
from pipeline.training.weights import load_trained

# Kept beside the result, not in it.
_TIMING = ("seconds", "joules", "recorded")


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What a cell gave.

    Attributes:
        correct: (n_test,) bool; None if the run diverged.
        workers: processes that finished it.
        places: what it ran on, in order; more than one if it was interrupted and went on elsewhere.
        skipped_steps: left out for a gradient that was not finite.
        micro_batch: images that passed forward at a time.
        critical_batch: in images, with its interval, if the gradient noise scale was sampled.
        links: its hash chain, see `hash_chain`; empty where an earlier version of the code trained it.
        imported_from: the machine that trained it, if that was another.
        seconds: wall time; kept beside the result, not in it.
        joules: that the devices of all ranks drew meanwhile, kept likewise; untold where the run went on from what an
            earlier process had saved, since that process's part is not known.
        recorded: when the run ended, UTC, as `2026-11-23T18:45:12.000000Z`; kept likewise. None in entries of
            versions that stated no plans.
    """

    status: Literal["finished", "diverged"]
    top1: float | None
    balanced_accuracy: float | None
    loss: float | None
    history: tuple[Record, ...]
    correct: NDArray[np.bool_] | None
    workers: int
    places: tuple[str, ...]
    skipped_steps: int
    micro_batch: int
    critical_batch: Mapping[str, float | int | str | None] | None
    links: tuple[Link, ...] = ()
    imported_from: Mapping[str, Any] | None = None
    seconds: float
    joules: Energy = UNTOLD
    recorded: str | None = None


class Ledger:
    """The finished cells under one folder.

    A cell's folder appears by a single rename, so a killed process leaves a whole entry or none.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, key: str, *, with_weights: bool = False) -> bool:
        """Whether a cell need not run; one that diverged has no weights to wait for."""
        if not (self._root / key).is_dir():
            return False
        return not with_weights or self.weights(key).exists() or self.get(key).status == "diverged"

    def weights(self, key: str) -> Path:
        """Where the weights of a cell are, if they were kept."""
        return self._root / key / "weights.pt"

    def add(self, identity: Identity, result: CellResult, weights: Path | None = None) -> None:
        """Record a cell; `weights` is moved into its folder. An older entry is replaced."""
        key = identity.key
        building = self._root / f".{key}.{os.getpid()}.tmp"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        record = dataclasses.asdict(result)
        record.pop("correct")
        write_json(building / "timing.json", {name: record.pop(name) for name in _TIMING})
        if result.correct is not None:
            write_array(building / "correct.npy", result.correct)
        if weights is not None:
            shutil.move(weights, building / "weights.pt")
        write_json(building / "result.json", record)
        write_json(building / "identity.json", dataclasses.asdict(identity))
        # Never a moment with half of an entry under its name.
        replaced = self._root / f".{key}.old.{os.getpid()}.tmp"
        if (self._root / key).exists():
            (self._root / key).rename(replaced)
        building.rename(self._root / key)
        shutil.rmtree(replaced, ignore_errors=True)

    def identities(self) -> Iterator[Identity]:
        """Of all entries, in the order of their names.

        Raises:
            InputError: an entry is damaged, or was not made under its name.
        """
        for folder in sorted(path for path in self._root.glob("[0-9a-f]*") if path.is_dir()):
            try:
                identity = Identity(**read_json(folder / "identity.json"))
            except TypeError:
                raise _damaged(folder) from None
            if identity.key != folder.name:
                raise _damaged(folder)
            yield identity

    def take_over(self, other: "Ledger", identity: Identity, here: Identity) -> bool:
        """Copy the entry `identity` of `other` under the identity that it has here; returns whether it was new.

        Raises:
            InputError: the entry is damaged.
        """
        weights = other.weights(identity.key) if other.weights(identity.key).is_file() else None
        if self.has(here.key, with_weights=weights is not None):
            return False
        result = other.get(identity.key)
        if identity.machine != here.machine and result.imported_from is None:
            result = replace(result, imported_from=identity.machine)
        if weights is None:
            self.add(here, result)
            return True
        load_trained(weights)  # refused if it is damaged or holds code
        self._root.mkdir(parents=True, exist_ok=True)
        copy = self._root / f".{here.key}.weights.{os.getpid()}.tmp"
        shutil.copyfile(weights, copy)
        self.add(here, result, copy)
        return True

    def get(self, key: str) -> CellResult:
        """Raises InputError if the entry is damaged."""
        folder = self._root / key
        record: dict[str, Any] = read_json(folder / "result.json")
        try:
            history = tuple(Record(**entry) for entry in record.pop("history"))
            links = tuple(Link(**entry) for entry in record.pop("links", ()))
            correct = np.load(folder / "correct.npy") if record["status"] == "finished" else None
            timing = read_json(folder / "timing.json")
            # Entries of before energy was measured have none, nor have those of before plans were stated a date.
            seconds, joules = float(timing["seconds"]), Energy.read_back(timing.get("joules"))
            recorded: str | None = timing.get("recorded")
            places = tuple(record.pop("places"))
            return CellResult(
                **record, history=history, links=links, places=places, correct=correct, seconds=seconds,
                joules=joules, recorded=recorded,
            )  # fmt: skip
        except (AttributeError, TypeError, KeyError, ValueError, OSError, EOFError):
            raise _damaged(folder) from None


def _damaged(folder: Path) -> InputError:
    return InputError(f"{folder}: damaged entry; delete this folder and run again")
