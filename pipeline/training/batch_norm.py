"""Population statistics for evaluation."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipeline import distributed
from pipeline.datasets.resident import ResidentImages


@torch.no_grad()
def recompute_statistics(
    model: nn.Module,
    images: ResidentImages,
    batches: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    parts: Sequence[slice],
) -> None:
    """Set the running statistics to the mean, over groups, of the final weights' own.

    The moving average kept while training is of past weights, and of few of them in a short run of
    large batches; it is discarded (Wu & Johnson 2021, Rethinking "Batch" in BatchNorm, section 3).
    Groups are those of training: one simulated worker's images. The result does not depend on the
    number of processes, up to rounding.

    Args:
        batches: (ids, epochs) of global batches.
        parts: the slices of a batch that this rank runs.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over all forward passes
    model.train()
    for ids, epochs in batches:
        for part in parts:
            model(images.training_batch(ids[part], epochs[part]))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked *= distributed.world_size()
    _average_over_ranks([buffer for layer in layers for buffer in (layer.running_mean, layer.running_var)])


def _average_over_ranks(buffers: Sequence[Tensor | None]) -> None:
    """All ranks ran equally many groups, so the mean over ranks is the mean over groups."""
    held = [buffer for buffer in buffers if buffer is not None]
    flat = torch.cat([buffer.flatten() for buffer in held])
    flat = distributed.all_reduce_sum_(flat) / distributed.world_size()
    for buffer, mean in zip(held, flat.split([buffer.numel() for buffer in held]), strict=True):
        buffer.copy_(mean.view_as(buffer))
