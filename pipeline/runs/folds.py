"""Train one network per fold, one after another, and keep the finished ones, which survive a kill."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.config.recipe import CheckpointInterval
from pipeline.distributed import World
from pipeline.live import StudyProgress
from pipeline.models import build_network
from pipeline.models.network import Network
from pipeline.processes import check_space
from pipeline.run_log import RunLog
from pipeline.runs.checkpoints import RunCheckpoints, has_checkpoints, run_checkpointer, unused_checkpoints
from pipeline.runs.record import damaged
from pipeline.training.checkpointing import (
    remove_stale_checkpoints,
    stop_and_save_flags,
)
from pipeline.training.dynamics import TrainingDynamics
from pipeline.training.loop import TrainData, train
from pipeline.training.run_key import checkpoint_folder_name, run_key
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.weights import weight_bytes

BYTES_PER_IMAGE = 12
"""Bytes of the confidence, the margin and the forgetting events of a training image."""


@dataclass(frozen=True, kw_only=True)
class CachedNetwork:
    """A finished network.

    Attributes:
        state: state dict of the network.
        train_loss: in nats.
        confidence: (N,) float32, see `loop.TrainedRun`.
        seconds: wall time of its training, over all processes.
        dynamics: see `loop.TrainedRun`; None if an earlier version or no training recorded any.
    """

    state: Mapping[str, Tensor]
    train_loss: float
    confidence: NDArray[np.float32]
    seconds: float
    dynamics: TrainingDynamics | None = None

    def model(self, settings: TrainSettings, device: torch.device) -> Network:
        """Build the network with the saved bits."""
        model = build_network(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed)
        model.load_state_dict(dict(self.state))
        return model.to(device).to(memory_format=torch.channels_last)


class NetworkCache:
    """The networks under one folder, one folder per key.

    A network is one file, named after its SHA-256, that appears by a single rename: it is complete or absent.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, network: CachedNetwork, *, steps: int) -> None:
        """Add a network; only rank 0 calls it."""
        dynamics = vars(network.dynamics) if network.dynamics else {}
        content = {
            **vars(network),
            "confidence": torch.from_numpy(network.confidence),
            "dynamics": {name: torch.from_numpy(values) for name, values in dynamics.items()},
        }
        RunCheckpoints(self.folder(key), key, keep=1).save(steps, content)

    def get(self, key: str) -> CachedNetwork | None:
        """Load a network; None if there is none. Only rank 0 calls it.

        Raises:
            InputError: the entry is damaged, or is that of another key.
        """
        folder, reasons = self.folder(key), list[str]()
        if not self._has(key):
            return None
        latest = RunCheckpoints(folder, key).load_latest(reasons.append)
        # Entries of earlier versions have no dynamics.
        saved: dict[str, Any] = {"dynamics": {}, **(latest[1] if latest else {})}
        if saved.keys() != CachedNetwork.__dataclass_fields__.keys():
            raise damaged(folder, "; ".join(reasons) or "not a network")
        os.utime(folder)
        dynamics = {name: np.asarray(values) for name, values in saved["dynamics"].items()}
        saved |= {
            "confidence": np.asarray(saved["confidence"]),
            "dynamics": TrainingDynamics(**dynamics) if dynamics else None,
        }
        return CachedNetwork(**saved)

    def check_space(self, keys: Sequence[str], settings: TrainSettings, n: int) -> None:
        """Check that there is room for the networks of `keys` that are missing; only rank 0 calls it.

        Args:
            settings: of any of the networks, which are of one size.
            n: number of training images.

        Raises:
            InputError: with the bytes and the fix.
        """
        if n_missing := sum(not self._has(key) for key in keys):
            check_space(self._root, n_missing * (weight_bytes(settings) + BYTES_PER_IMAGE * n))

    def _has(self, key: str) -> bool:
        return any(self.folder(key).glob("step-*.pt"))

    def folder(self, key: str) -> Path:
        """Return the folder of an entry."""
        return self._root / key

    def clear(self, *, max_age_s: float) -> None:
        """Remove networks that were neither put nor read for `max_age_s` seconds."""
        remove_stale_checkpoints(self._root, max_age_s=max_age_s)


@dataclass(frozen=True, kw_only=True)
class FoldStore:
    """The folders in which the networks of all folds are saved.

    Attributes:
        checkpoints: folder with a folder for each run, named after its key.
        cache: finished networks, read by rank 0.
        interval: between two checkpoints.
        data_digest: of the images, labels and initial weights.
    """

    checkpoints: Path
    cache: NetworkCache
    interval: CheckpointInterval
    data_digest: str


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """A trained network.

    Attributes:
        train_loss: of the last steps, in nats; not finite where the run diverged.
        divergence: see `loop.TrainedRun`.
        resumed: whether an earlier process took some or all of its steps.
        earlier_seconds: wall time of earlier processes.
        confidence: (N,) float32, see `loop.TrainedRun`.
        dynamics: None if an earlier version, which recorded none, trained the network.
    """

    model: Network
    train_loss: float
    divergence: str | None = None
    resumed: bool
    earlier_seconds: float
    confidence: NDArray[np.float32]
    dynamics: TrainingDynamics | None


def train_folds(
    settings: Sequence[TrainSettings],
    data: Sequence[TrainData],
    *,
    store: FoldStore,
    options: RunOptions,
    initialize: Callable[[Network], None] | None,
    world: World,
    log: RunLog,
) -> Iterator[FoldResult]:
    """Train a network for each of `settings` on the data of its fold; see `loop.train`.

    Args:
        options: of every run; a run gets a separate checkpointer, and its title says where it is.

    Raises:
        InputError, Terminated: as `loop.train`; or the disk has no room for the finished networks.
    """
    flag_sync = stop_and_save_flags()
    progress = StudyProgress([one.batch_sizes.examples(one.steps) for one in settings], unit="network")
    threads = torch.get_num_threads()
    run_keys = [
        run_key(one, of_fold.train_mask, data_digest=store.data_digest, device=world.device, threads=threads)
        for one, of_fold in zip(settings, data, strict=True)
    ]
    keys = [one.fingerprint for one in run_keys]
    if world.is_main:
        store.cache.check_space(keys, settings[0], len(data[0].train_mask))
        for line in unused_checkpoints(store.checkpoints, keys):
            log.info(line)
    for key, fold_settings, fold_data in zip(keys, settings, data, strict=True):
        folder = store.checkpoints / checkpoint_folder_name(key)
        where = progress.begin_run()
        title = options.title if len(settings) == 1 else f"{options.title}: {where}"
        if cached := distributed.broadcast_object(store.cache.get(key) if world.is_main else None):
            log.info(f"{title}: finished before, and not trained again")
            if cached.dynamics is None:
                log.info(f"{title}: recorded no margins; to train again, remove {store.cache.folder(key)}")
            progress.end_run(cached.seconds)
            yield FoldResult(
                model=cached.model(fold_settings, world.device), train_loss=cached.train_loss, resumed=True,
                earlier_seconds=cached.seconds, confidence=cached.confidence, dynamics=cached.dynamics,
            )  # fmt: skip
            continue
        start = time.monotonic()
        resumed = has_checkpoints(folder)
        checkpointer = run_checkpointer(store.interval, folder, flag_sync, world, run=key)
        with checkpointer.stop_at_signals():
            run = train(
                fold_settings,
                fold_data,
                world=world,
                log=log,
                options=replace(options, title=title, checkpointer=checkpointer),
                initialize=initialize,
                track_confidence=True,
            )
            assert run.confidence is not None
            loss = run.history[-1].train_loss
            if loss is not None and world.is_main:
                network = CachedNetwork(
                    state=run.model.state_dict(), train_loss=loss, confidence=run.confidence, dynamics=run.dynamics,
                    seconds=run.earlier_seconds + time.monotonic() - start,
                )  # fmt: skip
                store.cache.put(key, network, steps=fold_settings.steps)
            checkpointer.clear()
        progress.end_run(run.earlier_seconds)
        if len(settings) > 1:
            log.info(f"{options.title}: {progress.where}; trained in {time.monotonic() - start:.1f} s")
        train_loss = math.nan if loss is None else loss
        yield FoldResult(
            model=run.model, train_loss=train_loss, divergence=run.divergence, resumed=resumed,
            earlier_seconds=run.earlier_seconds, confidence=run.confidence, dynamics=run.dynamics,
        )  # fmt: skip
