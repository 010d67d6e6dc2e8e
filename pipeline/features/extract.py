"""From images to features: evaluation mode, no augmentation, one batch in memory at a time."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import distributed
from pipeline.distributed import Ranks
from pipeline.errors import InputError
from pipeline.run_log import Progress
from pipeline.training.evaluate import rows_of_rank
from pipeline.training.weights import TrainedNetwork, resident

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
    images: NDArray[np.uint8],
    out: NDArray[np.float32],
    *,
    batch_size: int,
    ranks: Ranks,
    progress: Progress,
) -> Predictions:
    """Write the penultimate features of all images to `out`; each rank writes its own rows.

    Args:
        images: uint8 (N, H, W, 3), may be memory-mapped.
        out: float32 (N, D), writable, shared between ranks.
        batch_size: images per forward pass.

    Raises:
        InputError: the network gives features that are not finite.
    """
    rows = rows_of_rank(len(images), ranks)
    predicted = torch.zeros(len(images), dtype=torch.int64)
    confidence = torch.zeros(len(images))
    chunk_size = max(batch_size, _CHUNK_BYTES // images[:1].nbytes)
    for start in range(0, len(rows), chunk_size):
        chunk = rows[start : start + chunk_size]
        loader = resident(images[chunk[0] : chunk[-1] + 1], network.format, ranks.device)
        for first in range(0, len(chunk), batch_size):
            ids = np.arange(first, min(first + batch_size, len(chunk)))
            features = network.model.features(loader.evaluation_batch(ids))
            where = slice(chunk[ids[0]], chunk[ids[-1]] + 1)
            out[where] = features.float().cpu().numpy()
            if not np.isfinite(out[where]).all():
                raise InputError("features: the network gives NaN or infinity; lower finetune.learning_rate")
            top = network.model.classify(features).softmax(1).max(1)
            predicted[where], confidence[where] = top.indices.cpu(), top.values.float().cpu()
            progress.update(len(ids))
    totals = [distributed.all_reduce_sum_(values.to(ranks.device)).cpu().numpy() for values in (predicted, confidence)]
    return Predictions(predicted=totals[0], confidence=totals[1])
