"""Several networks trained one after another, of which a kill loses no finished one."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.config.recipe import CheckpointInterval
from pipeline.datasets.sources import TrainingImages
from pipeline.distributed import CommConfig, World
from pipeline.models.resnet import Network
from pipeline.run_log import RunLog
from pipeline.training.checkpointing import make_checkpointer, stop_and_save_flags
from pipeline.training.loop import train
from pipeline.training.result_cache import CachedNetwork, NetworkCache
from pipeline.training.run_key import checkpoint_folder_name, run_key
from pipeline.training.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """A trained network.

    Attributes:
        train_loss: of the last steps, in nats; not finite where the run diverged.
        resumed: an earlier process took some or all of its steps.
        earlier_seconds: that earlier processes took.
        confidence: (N,) float32, see `loop.TrainedRun`.
    """

    model: Network
    train_loss: float
    resumed: bool
    earlier_seconds: float
    confidence: NDArray[np.float32]


def train_folds(
    settings: Sequence[TrainSettings],
    members: Sequence[NDArray[np.bool_]],
    images: TrainingImages,
    labels: Tensor,
    *,
    folder: Path,
    kept: NetworkCache,
    data_digest: str,
    interval: CheckpointInterval,
    micro_batch: int | Literal["auto"],
    transport: CommConfig,
    initialise: Callable[[Network], None] | None,
    ranks: World,
    log: RunLog,
    title: str,
) -> Iterator[FoldResult]:
    """Train a network for each of `settings` on the rows in `members`, (N,) bool; see `loop.train`.

    Args:
        folder: of the checkpoints; each run has its own in it, under its fingerprint.
        kept: where finished networks are found again, by rank 0.
        data_digest: of all that `images`, `labels` and `initialise` come from.

    Raises:
        InputError, Terminated: as `loop.train`.
    """
    agreement = stop_and_save_flags()
    for number, (own, rows) in enumerate(zip(settings, members, strict=True)):
        threads = torch.get_num_threads()
        key = run_key(own, rows, data_digest=data_digest, device=ranks.device, threads=threads).key
        unfinished = folder / checkpoint_folder_name(key)
        named = title if len(settings) == 1 else f"{title} fold {number}"
        if found := distributed.broadcast(kept.find(key) if ranks.is_main else None):
            log.info(f"{named}: finished before, and not trained again")
            yield FoldResult(
                model=found.model(own, ranks.device), train_loss=found.train_loss, resumed=True,
                earlier_seconds=found.seconds, confidence=found.confidence,
            )  # fmt: skip
            continue
        start = time.monotonic()
        resumed = has_checkpoints(unfinished)
        pauses = make_checkpointer(interval, unfinished, agreement, ranks)
        with pauses.watching():
            run = train(
                own,
                images,
                labels,
                rows,
                ranks=ranks,
                log=log,
                title=named,
                initialise=initialise,
                micro_batch=micro_batch,
                transport=transport,
                pauses=pauses,
                track_confidence=True,
            )
            assert run.confidence is not None
            loss = run.history[-1].train_loss
            if loss is not None and ranks.is_main:
                network = CachedNetwork(
                    state=run.model.state_dict(), train_loss=loss, confidence=run.confidence,
                    seconds=run.earlier_seconds + time.monotonic() - start,
                )  # fmt: skip
                kept.put(key, network, steps=own.steps)
            pauses.finished()
        train_loss = math.nan if loss is None else loss
        yield FoldResult(
            model=run.model, train_loss=train_loss, resumed=resumed, earlier_seconds=run.earlier_seconds,
            confidence=run.confidence,
        )  # fmt: skip


def has_checkpoints(folder: Path) -> bool:
    """Whether an earlier process saved a state of the run whose checkpoints are in `folder`, by this node's disk.

    Their folder is made with the first of them and goes when the run is finished.
    """
    return folder.is_dir()
