"""Gradients averaged over ranks, while the backward pass runs or after it."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from pipeline.distributed.beside import on_stream, on_thread
from pipeline.distributed.collectives import several
from pipeline.distributed.compression import Compression, WholeGradient
from pipeline.distributed.horovod import AveragedByHorovod
from pipeline.distributed.nodes import Nodes, average_by_node, nodes_of_run
from pipeline.distributed.transport import Transport

_TORCHS_OWN = Transport().bucket_mib


def data_parallel(
    model: nn.Module, device: torch.device, transport: Transport | None = None, compression: Compression | None = None
) -> nn.Module:
    """Wrap for gradient averaging over ranks; the model itself where there is one.

    Buffers stay local: BatchNorm's running statistics are averaged explicitly.

    Args:
        transport: None: torch's defaults.
        compression: None: gradients as they are. Between the nodes only where the transport is hierarchical.
    """
    if not several():
        return model
    transport, compression = transport or Transport(), compression or Compression()
    if transport.library == "horovod":
        return AveragedByHorovod(model, device, transport.timeout_seconds)
    nodes = nodes_of_run(transport.timeout_seconds) if transport.hierarchical else None
    if not transport.overlap:
        return _AveragedAfterwards(model, compression, nodes)
    ids = [device.index] if device.type == "cuda" else None
    # torch renamed the option and warns about the old name.
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    # Told its own default, torch would give the first bucket the size of all.
    bucket_mib = None if transport.bucket_mib == _TORCHS_OWN else transport.bucket_mib
    options: dict[str, Any] = {name: False, "bucket_cap_mb": bucket_mib}
    parallel = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True, **options)
    if nodes is not None:
        parallel.register_comm_hook(None, _one_after_another(compression, nodes, device))
    elif compression.kind != "none":
        parallel.register_comm_hook(None, _over_all_ranks(compression))
    return parallel


@contextmanager
def defer_reduction(model: nn.Module, defer: bool) -> Iterator[None]:
    """Around a forward and a backward pass: gradients are averaged by its end, or stay local with `defer`."""
    if isinstance(model, DistributedDataParallel) and defer:
        with model.no_sync():
            yield
        return
    if isinstance(model, AveragedByHorovod) and not defer:
        with model.averaging():
            yield
        return
    yield
    if isinstance(model, _AveragedAfterwards) and not defer:
        model.average_gradients()


class _AveragedAfterwards(nn.Module):
    """Passes to `module`; all gradients are averaged in one message when asked for."""

    def __init__(self, module: nn.Module, compression: Compression, nodes: Nodes | None) -> None:
        super().__init__()
        self.module = module
        self._compression, self._nodes = compression, nodes

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, n_classes)."""
        logits: Tensor = self.module(images)
        return logits

    def average_gradients(self) -> None:
        """Of all parameters that are trained, in place."""
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        assert len(gradients) == len(trained), "ranks would send messages of different length"
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        whole = WholeGradient(flat, [gradient.shape for gradient in gradients])
        if self._nodes is None:
            self._compression.average(whole, _world()).wait()
        else:
            average_by_node(whole, self._compression, self._nodes)
        for gradient, mean in zip(gradients, whole.gradients(), strict=True):
            gradient.copy_(mean)


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world


Hook = Callable[[None, GradBucket], torch.futures.Future[Tensor]]
"""Of DistributedDataParallel, which insists on these types."""


def _over_all_ranks(compression: Compression) -> Hook:
    def average(_: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        return compression.average(bucket, _world())

    return average


def _one_after_another(compression: Compression, nodes: Nodes, device: torch.device) -> Hook:
    """Beside the backward pass, one bucket at a time in the order of their coming.

    That order is the same on all ranks, which several exchanges for one bucket need.
    """
    beside = on_stream(device) if device.type == "cuda" else on_thread()

    def average(_: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        return beside(bucket.buffer(), lambda: average_by_node(bucket, compression, nodes))

    return average
