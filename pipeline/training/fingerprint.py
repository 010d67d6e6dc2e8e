"""What a finished cell is recognised by."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.artifacts.code import code_digest
from pipeline.training.settings import TrainSettings

# With what they import: a run's images, the run, and its evaluation.
_DECIDING = ("images", "loop", "evaluate")
# Their own code cannot change a result: words for people, and finding what the hash of the data covers.
_PASSIVE = frozenset({"pipeline"}) | frozenset(
    f"pipeline.{name}" for name in ("run_log", "errors", "processes", "datasets", "paths", "artifacts.prepared")
)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What decides a cell's result; plain values.

    Attributes:
        job: settings, the rows trained on, the data, and the syntax trees of the training code (a
            comment retrains nothing).
        machine: what decides the bits beside the job: versions, and the kind of GPU or the CPU's
            vector instructions. How many processes there are is not in it: the result belongs to
            the simulated workers.
    """

    job: Mapping[str, Any]
    machine: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Hex digest; the cell's name in the ledger."""
        text = json.dumps([self.job, self.machine], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def identify(
    settings: TrainSettings, members: NDArray[np.bool_], *, data_digest: str, device: torch.device
) -> Identity:
    """The identity of a cell on this machine.

    Args:
        members: (N,) bool, the rows trained on.
        data_digest: of the images and labels of both splits.
    """
    job = {
        "settings": dataclasses.asdict(settings),
        "members": hashlib.sha256(np.packbits(members).tobytes()).hexdigest(),
        "data": data_digest,
        "code": training_code(),
    }
    return Identity(job=job, machine=this_machine(device))


def this_machine(device: torch.device) -> dict[str, Any]:
    """Versions and the kind of device."""
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    # Importing these takes seconds.
    others = {name: metadata.version(name) for name in ("torchvision", "timm")}
    return {**versions, **others, "device": _kind(device)}


def _kind(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()


@cache
def training_code() -> str:
    """Digest of the syntax trees of all code that decides a result."""
    digests = [code_digest(f"pipeline.training.{module}", passive=_PASSIVE) for module in _DECIDING]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
