"""Average gradients over ranks: DistributedDataParallel, one message after the backward pass, or Horovod."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from pipeline.distributed.collectives import DEFAULT_TIMEOUT_S, is_distributed
from pipeline.distributed.compression import Compression, FlatGradient
from pipeline.distributed.hierarchical import (
    NodeGroups,
    hierarchical_average,
    node_groups,
    stream_runner,
    thread_runner,
)
from pipeline.distributed.horovod import HorovodDataParallel


@dataclass(frozen=True, kw_only=True)
class CommConfig:
    """How gradients travel between ranks; changes a result by rounding alone.

    Attributes:
        library: with `horovod` the next three keep their defaults.
        bucket_mib: MiB of gradients that travel together during the backward pass, > 0. 25 is torch's default, with
            which the first bucket, whose gradients are ready first, holds 1 MiB.
        overlap: False sends everything in one message after the backward pass.
        hierarchical: sum on one rank of each node, average between these ranks, and broadcast inside the node.
        timeout_seconds: time after which a rank fails because another has not reached it, > 0.
    """

    library: Literal["ddp", "horovod"] = "ddp"
    bucket_mib: float = 25.0
    overlap: bool = True
    hierarchical: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_S


_DEFAULT_BUCKET_MIB = CommConfig().bucket_mib


def data_parallel(
    model: nn.Module, device: torch.device, comm: CommConfig | None = None, compression: Compression | None = None
) -> nn.Module:
    """Wrap a model so that its gradients are averaged over ranks; on one process, return the model itself.

    Buffers stay local: BatchNorm's running statistics are averaged explicitly.

    Args:
        comm: None takes torch's defaults.
        compression: None sends gradients uncompressed. With `comm.hierarchical` it applies between nodes only.
    """
    if not is_distributed():
        return model
    comm, compression = comm or CommConfig(), compression or Compression()
    if comm.library == "horovod":
        return HorovodDataParallel(model, device, comm.timeout_seconds)
    nodes = node_groups(comm.timeout_seconds) if comm.hierarchical else None
    if not comm.overlap:
        return _NonOverlappedDataParallel(model, compression, nodes)
    ids = [device.index] if device.type == "cuda" else None
    # torch renamed the option and warns about the old name.
    parameters = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers"
    # An explicit default would make torch size the first bucket like all others.
    bucket_mib = None if comm.bucket_mib == _DEFAULT_BUCKET_MIB else comm.bucket_mib
    options: dict[str, Any] = {name: False, "bucket_cap_mb": bucket_mib}
    parallel = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True, **options)
    if nodes is not None:
        parallel.register_comm_hook(None, _serial_hierarchical_hook(compression, nodes, device))
    elif compression.kind != "none":
        parallel.register_comm_hook(None, _all_ranks_hook(compression))
    return parallel


@contextmanager
def gradient_sync(model: nn.Module, *, enabled: bool) -> Iterator[None]:
    """Around a forward and a backward pass: average gradients by its end if `enabled`, else keep them local."""
    if isinstance(model, DistributedDataParallel) and not enabled:
        with model.no_sync():
            yield
        return
    if isinstance(model, HorovodDataParallel) and enabled:
        with model.average_gradients():
            yield
        return
    yield
    if isinstance(model, _NonOverlappedDataParallel) and enabled:
        model.average_gradients()


class _NonOverlappedDataParallel(nn.Module):
    """Wraps `module`; `average_gradients` averages all gradients in one message."""

    def __init__(self, module: nn.Module, compression: Compression, nodes: NodeGroups | None) -> None:
        super().__init__()
        self.module = module
        self._compression, self._nodes = compression, nodes

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, n_classes)."""
        logits: Tensor = self.module(images)
        return logits

    def average_gradients(self) -> None:
        """Average the gradients of all trained parameters, in place."""
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        assert len(gradients) == len(trained), "ranks would send messages of different length"
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        flat_gradient = FlatGradient(flat, [gradient.shape for gradient in gradients])
        if self._nodes is None:
            self._compression.average(flat_gradient, _world()).wait()
        else:
            hierarchical_average(flat_gradient, self._compression, self._nodes)
        for gradient, mean in zip(gradients, flat_gradient.gradients(), strict=True):
            gradient.copy_(mean)


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world


Hook = Callable[[None, GradBucket], torch.futures.Future[Tensor]]
"""Type of a communication hook of DistributedDataParallel."""


def _all_ranks_hook(compression: Compression) -> Hook:
    def average(_: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        return compression.average(bucket, _world())

    return average


def _serial_hierarchical_hook(compression: Compression, nodes: NodeGroups, device: torch.device) -> Hook:
    """Return a hook that overlaps with the backward pass, one bucket at a time in the order of their arrival.

    That order is the same on all ranks, as the several collectives for one bucket require.
    """
    runner = stream_runner(device) if device.type == "cuda" else thread_runner()

    def average(_: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        return runner(bucket.buffer(), lambda: hierarchical_average(bucket, compression, nodes))

    return average
