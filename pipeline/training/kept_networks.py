"""Trained networks that are kept when their stage has finished, so that none is trained twice."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.errors import InputError
from pipeline.models import build
from pipeline.models.network import Network
from pipeline.training.checkpoints import Checkpoints, clear_runs
from pipeline.training.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class KeptNetwork:
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


class KeptNetworks:
    """The networks under one folder, one folder per key.

    A network is one file that is named after its SHA-256 and appears by a single rename: it is whole or absent.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, key: str, network: KeptNetwork, *, steps: int) -> None:
        """Add one; rank 0 alone calls it."""
        content = {**vars(network), "confidence": torch.from_numpy(network.confidence)}
        Checkpoints(self._root / key, keep=1).save(steps, content)

    def find(self, key: str) -> KeptNetwork | None:
        """None where there is none; rank 0 alone calls it.

        Raises:
            InputError: it is damaged.
        """
        folder, reasons = self._root / key, list[str]()
        if not any(folder.glob("step-*.pt")):
            return None
        newest = Checkpoints(folder).newest(reasons.append)
        if newest is None or newest[1].keys() != KeptNetwork.__dataclass_fields__.keys():
            raise InputError(f"{folder}: damaged entry; delete this folder and run again")
        saved: dict[str, Any] = newest[1]
        os.utime(folder)
        return KeptNetwork(**{**saved, "confidence": np.asarray(saved["confidence"])})

    def clear(self, *, unused_s: float) -> None:
        """Remove those that were neither kept nor found for so many seconds."""
        clear_runs(self._root, unused_s=unused_s)
