"""Gradients averaged over ranks while the backward pass runs."""

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pipeline.distributed.collectives import several


def data_parallel(model: nn.Module, device: torch.device) -> nn.Module:
    """Wrap for gradient averaging over ranks; the model itself where there is one.

    Buffers stay local: BatchNorm's running statistics are averaged explicitly.
    """
    if not several():
        return model
    ids = [device.index] if device.type == "cuda" else None
    # torch renamed the option and warns about the old name.
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {name: False}
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True, **options)


def defer_reduction(model: nn.Module, defer: bool) -> AbstractContextManager[None]:
    """While active and `defer`, backward passes keep gradients local; wrap the forward pass too."""
    if defer and isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()
