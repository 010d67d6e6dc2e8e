"""What a finished cell is recognised by."""

import dataclasses
import hashlib
import json
from functools import cache

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray

from pipeline.artifacts.code import code_digest
from pipeline.distributed import Ranks
from pipeline.training.settings import TrainSettings

# Their own code cannot change a result: words for people, and the registry of data sets.
_PASSIVE = frozenset({"pipeline.run_log", "pipeline.errors", "pipeline.processes", "pipeline.datasets"})


def fingerprint(settings: TrainSettings, members: NDArray[np.bool_], *, data_digest: str, ranks: Ranks) -> str:
    """Hex digest of everything that decides the bits of a run's result.

    Settings, the rows trained on, the data, the syntax trees of the training code (a comment
    retrains nothing), torch's version, the number of processes, their threads and the kind of GPU
    or the CPU's vector instructions.

    Args:
        members: (N,) bool, the rows trained on.
        data_digest: of the images and labels of both splits.
    """
    what = {
        "settings": dataclasses.asdict(settings),
        "members": hashlib.sha256(np.packbits(members).tobytes()).hexdigest(),
        "data": data_digest,
        "code": _training_code(),
        "versions": [torch.__version__, torchvision.__version__, np.__version__],
        "ranks": ranks.count,
        "threads": torch.get_num_threads() if ranks.device.type == "cpu" else None,
        "device": _kind(ranks.device),
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def _kind(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()


@cache
def _training_code() -> str:
    digests = [code_digest(f"pipeline.training.{module}", passive=_PASSIVE) for module in ("loop", "evaluate")]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
