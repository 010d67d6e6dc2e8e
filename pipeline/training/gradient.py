"""The gradient of one global batch, exact for any number of processes."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import distributed
from pipeline.datasets.resident import ResidentImages


def accumulate_gradients(
    model: nn.Module,
    images: ResidentImages,
    labels: Tensor,
    ids: NDArray[np.int64],
    epochs: NDArray[np.int64],
    parts: Sequence[slice],
    *,
    ranks: int,
    label_smoothing: float,
) -> Tensor:
    """Add the gradient of the mean loss over the global batch to the parameters' `grad`.

    It is the sum of the per-sample losses over the global count, not a mean of means, so parts may
    differ in size. Each part passes alone and has BatchNorm statistics of its own. Gradients are
    exchanged once, with the last part.

    Args:
        model: as returned by `distributed.data_parallel`, in training mode.
        labels: (N,) int64 of the whole data set, on the device.
        ids, epochs: (B,) the global batch, the same on all ranks.
        parts: the slices of the batch that this rank runs.
        ranks: processes that share the batch; averaging over them is undone here.

    Returns:
        Sum of the losses of this rank's images, 0-dimensional, on the device.
    """
    total = torch.zeros((), device=labels.device)
    for index, part in enumerate(parts):
        with distributed.defer_reduction(model, defer=index < len(parts) - 1):
            logits = model(images.training_batch(ids[part], epochs[part]))
            targets = labels[torch.from_numpy(ids[part]).to(labels.device)]
            loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)
            (loss * (ranks / len(ids))).backward()
        total += loss.detach()
    return total
