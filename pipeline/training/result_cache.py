"""Finished runs and networks, kept under their keys."""

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.artifacts.files import read_json, write_array, write_json
from pipeline.energy import UNKNOWN_ENERGY, Energy
from pipeline.errors import InputError
from pipeline.models import build
from pipeline.models.resnet import Network
from pipeline.training.checkpointing import Checkpoints, remove_stale_checkpoints
from pipeline.training.run_key import RunKey
from pipeline.training.settings import TrainSettings
from pipeline.training.state import ChainLink, HistoryRecord
from pipeline.training.weights import load_trained

# Finished cells on disk, one folder per fingerprint. What is in the ledger is never trained again.


# Kept beside the result, not in it.
_TIMING = ("seconds", "joules", "recorded")


@dataclass(frozen=True, kw_only=True)
class RunResult:
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
    history: tuple[HistoryRecord, ...]
    correct: NDArray[np.bool_] | None
    workers: int
    places: tuple[str, ...]
    skipped_steps: int
    micro_batch: int
    critical_batch: Mapping[str, float | int | str | None] | None
    links: tuple[ChainLink, ...] = ()
    imported_from: Mapping[str, Any] | None = None
    seconds: float
    joules: Energy = UNKNOWN_ENERGY
    recorded: str | None = None


class RunCache:
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

    def add(self, identity: RunKey, result: RunResult, weights: Path | None = None) -> None:
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

    def identities(self) -> Iterator[RunKey]:
        """Of all entries, in the order of their names.

        Raises:
            InputError: an entry is damaged, or was not made under its name.
        """
        for folder in sorted(path for path in self._root.glob("[0-9a-f]*") if path.is_dir()):
            try:
                identity = RunKey(**read_json(folder / "identity.json"))
            except TypeError:
                raise _damaged(folder) from None
            if identity.key != folder.name:
                raise _damaged(folder)
            yield identity

    def import_run(self, other: "RunCache", identity: RunKey, here: RunKey) -> bool:
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

    def get(self, key: str) -> RunResult:
        """Raises InputError if the entry is damaged."""
        folder = self._root / key
        record: dict[str, Any] = read_json(folder / "result.json")
        try:
            history = tuple(HistoryRecord(**entry) for entry in record.pop("history"))
            links = tuple(ChainLink(**entry) for entry in record.pop("links", ()))
            correct = np.load(folder / "correct.npy") if record["status"] == "finished" else None
            timing = read_json(folder / "timing.json")
            # Entries of before energy was measured have none, nor have those of before plans were stated a date.
            seconds, joules = float(timing["seconds"]), Energy.from_record(timing.get("joules"))
            recorded: str | None = timing.get("recorded")
            places = tuple(record.pop("places"))
            return RunResult(
                **record, history=history, links=links, places=places, correct=correct, seconds=seconds,
                joules=joules, recorded=recorded,
            )  # fmt: skip
        except (AttributeError, TypeError, KeyError, ValueError, OSError, EOFError):
            raise _damaged(folder) from None


def _damaged(folder: Path) -> InputError:
    return InputError(f"{folder}: damaged entry; delete this folder and run again")


# Trained networks that are kept when their stage has finished, so that none is trained twice.


@dataclass(frozen=True, kw_only=True)
class CachedNetwork:
    """One of them.

    Attributes:
        state: of the network.
        train_loss: in nats.
        confidence: (N,) float32, see `loop.TrainedRun`.
        seconds: wall time that it took, in all processes.
    """

    state: Mapping[str, Tensor]
    train_loss: float
    confidence: NDArray[np.float32]
    seconds: float

    def model(self, settings: TrainSettings, device: torch.device) -> Network:
        """The network, in every bit as it was."""
        model = build(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed)
        model.load_state_dict(dict(self.state))
        return model.to(device).to(memory_format=torch.channels_last)


class NetworkCache:
    """The networks under one folder, one folder per key.

    A network is one file that is named after its SHA-256 and appears by a single rename: it is whole or absent.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, key: str, network: CachedNetwork, *, steps: int) -> None:
        """Add one; rank 0 alone calls it."""
        content = {**vars(network), "confidence": torch.from_numpy(network.confidence)}
        Checkpoints(self._root / key, keep=1).save(steps, content)

    def find(self, key: str) -> CachedNetwork | None:
        """None where there is none; rank 0 alone calls it.

        Raises:
            InputError: it is damaged.
        """
        folder, reasons = self._root / key, list[str]()
        if not any(folder.glob("step-*.pt")):
            return None
        newest = Checkpoints(folder).load_latest(reasons.append)
        if newest is None or newest[1].keys() != CachedNetwork.__dataclass_fields__.keys():
            raise InputError(f"{folder}: damaged entry; delete this folder and run again")
        saved: dict[str, Any] = newest[1]
        os.utime(folder)
        return CachedNetwork(**{**saved, "confidence": np.asarray(saved["confidence"])})

    def clear(self, *, max_age_s: float) -> None:
        """Remove those that were neither kept nor found for so many seconds."""
        remove_stale_checkpoints(self._root, max_age_s=max_age_s)
