"""Horovod in place of DistributedDataParallel: in each cycle a coordinator decides which gradients are averaged.

Sergeev and Del Balso (2018), Horovod: fast and easy distributed deep learning in TensorFlow. The library is optional
and must be built by hand, see docs/guides/clusters.md. Its ranks are the processes that torchrun started.
"""

import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.distributed.collectives import barrier, broadcast_object
from pipeline.distributed.hierarchical import ranks_by_node
from pipeline.errors import MachineError

_BUILD = "docs/guides/clusters.md says how it is built, or use ddp"


class HorovodDataParallel(nn.Module):
    """Wraps `module`; each gradient is sent to Horovod as soon as the backward pass has computed it.

    Args:
        timeout_seconds: time without contact after which a rank fails, > 0; equal for all models of a process.
    """

    def __init__(self, module: nn.Module, device: torch.device, timeout_seconds: float) -> None:
        super().__init__()
        self.module = module
        self._horovod, self._sending, self._sent = _joined(device.type, timeout_seconds), False, list[int]()
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._sender(name))

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> logits (N, n_classes)."""
        logits: Tensor = self.module(images)
        return logits

    @contextmanager
    def average_gradients(self) -> Iterator[None]:
        """Around a forward and a backward pass: average the gradients over ranks by its end."""
        self._sending, self._sent = True, []
        try:
            yield
        finally:
            self._sending = False
        for handle in self._sent:
            self._horovod.synchronize(handle)

    def _sender(self, name: str) -> Callable[[Tensor], None]:
        def send(parameter: Tensor) -> None:
            if self._sending:
                assert parameter.grad is not None
                flat = _flat_in_memory_order(parameter.grad)
                self._sent.append(self._horovod.allreduce_async_(flat, name=name, op=self._horovod.Average))

        return send


def _flat_in_memory_order(gradient: Tensor) -> Tensor:
    """View a gradient as (n,) in memory order, equal on all ranks: Horovod takes no channels-last tensors."""
    assert gradient.is_contiguous() or gradient.is_contiguous(memory_format=torch.channels_last), gradient.stride()
    return gradient.as_strided((gradient.numel(),), (1,))


@cache
def _joined(device_type: str, timeout_seconds: float) -> Any:
    """Initialize Horovod with this process as a rank; all ranks call it.

    Its controller is gloo. A rendezvous server on rank 0 connects the ranks, as `horovodrun` does.

    Raises:
        MachineError: Horovod cannot be imported, or was built without a required part.
    """
    try:
        # Optional: imported only for `library: horovod`.
        import horovod.torch as library
        from horovod.runner.common.util.hosts import SlotInfo
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        raise MachineError(f"communication.library: horovod, which cannot be imported ({error}); {_BUILD}") from None
    # Built without torch it can be imported; built without NCCL it may read a GPU's gradients before they are there.
    for needed in ["gloo", *(["nccl"] if device_type == "cuda" else [])]:
        if not getattr(library, f"{needed}_built", bool)():
            raise MachineError(f"communication.library: horovod, which was built without {needed} for torch; {_BUILD}")
    nodes = ranks_by_node()
    slots = {
        rank: SlotInfo(
            hostname=f"node-{node}", rank=rank, size=dist.get_world_size(), local_rank=local_rank,
            local_size=len(ranks), cross_rank=sum(local_rank < len(earlier) for earlier in nodes[:node]),
            cross_size=sum(local_rank < len(other) for other in nodes),
        )
        for node, ranks in enumerate(nodes)
        for local_rank, rank in enumerate(ranks)
    }  # fmt: skip
    server = None
    if dist.get_rank() == 0:
        # Horovod's launcher takes a random port that a firewall may block; 0 lets the system choose.
        server = RendezvousHTTPServer(("", 0), RendezvousHandler, 0)
        server.init(list(slots.values()))
        threading.Thread(target=server.serve_forever, daemon=True).start()
    port: int = broadcast_object(server.server_address[1] if server else 0)
    _set_environment(slots[dist.get_rank()], port, timeout_seconds)
    library.init()
    barrier()
    if server:
        server.shutdown()
        server.server_close()
    return library


def _set_environment(slot: Any, port: int, timeout_seconds: float) -> None:
    """Set the environment variables of Horovod's start; interface names that the user set stay."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    os.environ.setdefault("HOROVOD_GLOO_IFACE", interface)
    os.environ.update({
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(os.environ["MASTER_ADDR"]),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(timeout_seconds)),
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    })  # fmt: skip
