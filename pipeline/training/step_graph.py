"""Optimizer steps that a GPU replays from a CUDA graph.

A step of a ResNet on small images is hundreds of operations, and a process needs longer to launch them one by one than
the GPU to run a small batch. A graph launches all of them at once. It has the operations of the plain step, so its bits
are those of the plain step, which the step `bits` of `python -m benchmarks.gpu_day` checks.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.training.gradients import PassInputs

Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Records the operations of a function without running them; returns a function that runs them on the same memory, and
the tensor that then has the result."""


def record_cuda_graph(work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Record a CUDA graph; see `Recorder`. The same work must have run before, which initializes torch's libraries."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may copy images meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()
    return graph.replay, result


def free_bytes(device: torch.device) -> int:
    """Return the memory of a GPU that no process holds, in bytes; 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def reserved_bytes(device: torch.device) -> int:
    """Return the memory of a GPU that torch holds without what it keeps for later, in bytes; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


class StepGraph:
    """A recorded step: it copies the inputs of each batch to where the recorded operations read them.

    Args:
        work: computes the loss of one pass, 0-dimensional, and all that depends on it.
        inputs: of the first batch; all others have the same shapes.
    """

    def __init__(self, work: Callable[[PassInputs], Tensor], inputs: PassInputs, record: Recorder) -> None:
        self._own = replace(inputs, **{name: value.clone() for name, value in _items(inputs) if value is not None})
        self._replay, self._loss = record(lambda: work(self._own))

    def run(self, inputs: PassInputs) -> Tensor:
        """Run the step on a batch; returns the loss, in memory that the next call overwrites."""
        for (_, own), (_, new) in zip(_items(self._own), _items(inputs), strict=True):
            if own is not None:
                own.copy_(new)
        self._replay()
        return self._loss


def _items(inputs: PassInputs) -> list[tuple[str, Any]]:
    return [(field.name, getattr(inputs, field.name)) for field in fields(inputs)]
