"""Training runs of seconds on images that can be told apart by their brightness."""

from typing import Any

import numpy as np
import torch
from made_up_training import ALONE, bright_images
from numpy.typing import NDArray

from pipeline.run_log import RunLog
from pipeline.training.images import load_images
from pipeline.training.loop import TrainedRun, train
from pipeline.training.settings import TrainSettings

N = 60


def train_bright(settings: TrainSettings, *, members: NDArray[np.bool_] | None = None, **options: Any) -> TrainedRun:
    """On the rows in `members`, (N,) bool; all of them without it."""
    pixels, labels = bright_images(N)
    images = load_images(pixels, settings, training=True, device=ALONE.device)
    members = np.ones(N, dtype=np.bool_) if members is None else members
    targets = np.where(members, labels, -1)  # out of range: training on one of the others fails
    log = RunLog.silent()
    arguments = {"ranks": ALONE, "log": log, "title": "", **options}
    return train(settings, images, torch.from_numpy(targets), members, **arguments)


def weights_of(run: TrainedRun) -> torch.Tensor:
    """Parameters and buffers, one after another, float64."""
    return torch.cat([tensor.flatten().double() for tensor in run.model.state_dict().values()])
