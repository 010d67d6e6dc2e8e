"""Train one network per fold, one after another; finished networks survive a kill."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import distributed
from pipeline.config.recipe import CheckpointInterval
from pipeline.distributed import World
from pipeline.models.resnet import Network
from pipeline.run_log import RunLog
from pipeline.training.checkpointing import make_checkpointer, stop_and_save_flags
from pipeline.training.dynamics import TrainingDynamics
from pipeline.training.loop import TrainData, train
from pipeline.training.result_cache import CachedNetwork, NetworkCache
from pipeline.training.run_key import checkpoint_folder_name, run_key
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.study_progress import StudyProgress


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
        resumed: whether an earlier process took some or all of its steps.
        earlier_seconds: wall time of earlier processes.
        confidence: (N,) float32, see `loop.TrainedRun`.
        dynamics: None if an earlier version, which recorded none, trained the network.
    """

    model: Network
    train_loss: float
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
        InputError, Terminated: as `loop.train`.
    """
    flag_sync = stop_and_save_flags()
    progress = StudyProgress([one.batch_sizes.examples(one.steps) for one in settings], unit="network")
    for fold_settings, fold_data in zip(settings, data, strict=True):
        threads = torch.get_num_threads()
        key = run_key(
            fold_settings, fold_data.train_mask, data_digest=store.data_digest, device=world.device, threads=threads
        ).fingerprint  # fmt: skip
        folder = store.checkpoints / checkpoint_folder_name(key)
        where = progress.begin_run()
        title = options.title if len(settings) == 1 else f"{options.title}: {where}"
        if cached := distributed.broadcast(store.cache.get(key) if world.is_main else None):
            log.info(f"{title}: finished before, and not trained again")
            if cached.dynamics is None:
                log.info(f"{title}: recorded no margins; to train again, remove {store.cache.folder(key)}")
            progress.end_run()
            yield FoldResult(
                model=cached.model(fold_settings, world.device), train_loss=cached.train_loss, resumed=True,
                earlier_seconds=cached.seconds, confidence=cached.confidence, dynamics=cached.dynamics,
            )  # fmt: skip
            continue
        start = time.monotonic()
        resumed = has_checkpoints(folder)
        checkpointer = make_checkpointer(store.interval, folder, flag_sync, world)
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
        progress.end_run()
        if len(settings) > 1:
            log.info(f"{options.title}: {progress.where}; trained in {time.monotonic() - start:.1f} s")
        train_loss = math.nan if loss is None else loss
        yield FoldResult(
            model=run.model, train_loss=train_loss, resumed=resumed, earlier_seconds=run.earlier_seconds,
            confidence=run.confidence, dynamics=run.dynamics,
        )  # fmt: skip


def has_checkpoints(folder: Path) -> bool:
    """Return whether an earlier process saved checkpoints in `folder`, by this node's disk.

    The folder appears with the first checkpoint, and is removed when the run is finished.
    """
    return folder.is_dir()
