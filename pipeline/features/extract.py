"""From images to features: evaluation mode, no augmentation, one batch in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.artifacts.prepared import ImageFiles, ImageSource
from pipeline.datasets.training_images import TrainingImages
from pipeline.distributed import Ranks
from pipeline.errors import InputError
from pipeline.run_log import Progress
from pipeline.training.evaluate import rows_of_rank
from pipeline.training.images import evaluation_images
from pipeline.training.weights import TrainedNetwork

# Images copied to the device at a time; bounds the memory for data sets of any length.
_CHUNK_BYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What the extractor itself says: `predicted` int64 (N,), `confidence` float32 (N,) in 0 to 1."""

    predicted: NDArray[np.int64]
    confidence: NDArray[np.float32]


@torch.inference_mode()
def extract_features(
    network: TrainedNetwork,
    images: ImageSource,
    out: NDArray[np.float32],
    *,
    batch_size: int,
    ranks: Ranks,
    progress: Progress,
) -> Predictions:
    """Write the penultimate features of all images to `out`; each rank writes its own rows.

    Args:
        images: uint8 (N, H, W, 3), may be memory-mapped; or files.
        out: float32 (N, D), writable, shared between ranks.
        batch_size: images per forward pass.

    Raises:
        InputError: the network gives features that are not finite.
    """
    predicted = torch.zeros(len(images), dtype=torch.int64)
    confidence = torch.zeros(len(images))
    for where, batch in _batches(images, network, batch_size, rows_of_rank(len(images), ranks), ranks.device):
        features = network.model.features(batch)
        out[where] = features.float().cpu().numpy()
        if not np.isfinite(out[where]).all():
            raise InputError("features: the network gives NaN or infinity; lower finetune.learning_rate")
        top = network.model.classify(features).softmax(1).max(1)
        predicted[where], confidence[where] = top.indices.cpu(), top.values.float().cpu()
        progress.update(len(batch))
    totals = [distributed.all_reduce_sum_(values.to(ranks.device)).cpu().numpy() for values in (predicted, confidence)]
    return Predictions(predicted=totals[0], confidence=totals[1])


def _batches(
    images: ImageSource, network: TrainedNetwork, batch_size: int, rows: NDArray[np.int64], device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """Contiguous `rows` in batches (B, 3, C, C) on the device, and where they belong."""
    if isinstance(images, ImageFiles):
        yield from _loaded(evaluation_images(images, network.format, device), rows, batch_size, first=0)
        return
    chunk_size = max(batch_size, _CHUNK_BYTES // images[:1].nbytes)
    for start in range(0, len(rows), chunk_size):
        chunk = rows[start : start + chunk_size]
        loader = evaluation_images(images[chunk[0] : chunk[-1] + 1], network.format, device)
        yield from _loaded(loader, chunk, batch_size, first=int(chunk[0]))


def _loaded(
    loader: TrainingImages, rows: NDArray[np.int64], batch_size: int, *, first: int
) -> Iterator[tuple[slice, Tensor]]:
    """Batches of a loader whose id 0 is row `first`."""
    parts = [rows[start : start + batch_size] - first for start in range(0, len(rows), batch_size)]
    with loader.prefetch((ids, None) for ids in parts):
        for ids in parts:
            yield slice(first + ids[0], first + ids[-1] + 1), loader.evaluation_batch(ids)
