"""Optimizer steps that a GPU replays from a CUDA graph.

A step of a ResNet on small images is hundreds of operations, and a process needs longer to launch them one by one than
the GPU to run a small batch. A graph launches all of them at once. It has the operations of the plain step, so its bits
are those of the plain step, which the step `bits` of `python -m benchmarks.gpu_day` checks.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.batching import BatchSlice, GlobalBatch
from pipeline.errors import is_out_of_memory
from pipeline.run_log import RunLog
from pipeline.training.gradients import PassInputs, TrainLoss

GraphCapture = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Captures the operations of a function without running them; returns a function that runs them on the same memory, and
the tensor that then has the result."""

# Copies of weights and images that a run makes outside of the graph: the weight average and the links of the hash
# chain, and the crops of the next batch.
_COPIES = 4
# An evaluation may need most of a GPU: a graph above this share of its memory is released first.
_LARGE = 1 / 8


def capture_cuda_graph(work: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Capture a CUDA graph, see `GraphCapture`. The same work must have run before, to initialize torch's libraries."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may copy images meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()
    return graph.replay, result


class StepGraphs:
    """The captured steps of one run, those of one batch size at a time.

    Args:
        model: in training mode, without gradients between steps.
        capture: None captures nothing.
        update: updates the weights by their gradients and removes the gradients; captured too. None leaves the
            gradients to the caller.
        log: of the run.
    """

    def __init__(
        self,
        model: nn.Module,
        capture: GraphCapture | None,
        *,
        update: Callable[[], object] | None,
        log: RunLog,
    ) -> None:
        self._model, self._capture, self._update, self._log = model, capture, update, log
        self._graph: _StepGraph | None = None
        # The batch size, and whether the labels' probabilities are tracked.
        self._key: tuple[int, bool] | None = None

    @property
    def updates(self) -> bool:
        return self._update is not None

    def run(self, train_loss: TrainLoss, batch: GlobalBatch, micro_batches: Sequence[BatchSlice]) -> Tensor | None:
        """Run both passes of a step, and the update.

        Returns:
            The sum of the losses, 0-dimensional, in memory that the next call overwrites; None for a step that the
            caller has to run: the first one of a kind, since torch's libraries and the optimizer's state start with
            it, and one of several passes.
        """
        key = (batch.size, train_loss.confidence_tracker is not None)
        if self._capture is None or len(micro_batches) != 1 or key != self._key:
            self._graph, self._key = None, key
            return None
        inputs = train_loss.load(batch, micro_batches[0])
        if self._graph is None:
            self._graph = self._captured(self._capture, train_loss, inputs, micro_batches[0])
        if self._graph is None:
            self._capture = None
            self._log.info(
                f"no memory for a CUDA graph of a step of {batch.size} images: operations are launched one by one"
            )
            return None
        return self._graph.run(inputs)

    def release_graph(self) -> None:
        """Release a graph that keeps much memory; a later step captures it again."""
        if self._graph is not None and self._graph.is_large():
            self._graph = None

    def _captured(
        self, capture: GraphCapture, train_loss: TrainLoss, inputs: PassInputs, part: BatchSlice
    ) -> "_StepGraph | None":
        """Capture a step; None if its memory, or the memory for the rest of the training next to it, is not there."""

        def work(own: PassInputs) -> Tensor:
            loss = train_loss.loss_from_inputs(self._model, own, part.group_sizes)
            (loss * (1 / part.size)).backward()
            if self._update is not None:
                self._update()
            return loss.detach()

        graph = None
        try:
            graph = _StepGraph(self._model, work, inputs, capture)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler, whose exception keeps tensors alive.
        if graph is not None and graph.fits_memory():
            return graph
        self._model.zero_grad(set_to_none=True)
        return None


class _StepGraph:
    """A captured step: it copies the inputs of each batch to where the captured operations read them."""

    def __init__(
        self, model: nn.Module, work: Callable[[PassInputs], Tensor], inputs: PassInputs, capture: GraphCapture
    ) -> None:
        self._device = inputs.images.device
        before = _reserved_bytes(self._device)
        self._inputs = replace(inputs, **{name: value.clone() for name, value in _tensors(inputs)})
        self._replay, self._loss = capture(lambda: work(self._inputs))
        self._n_bytes = _reserved_bytes(self._device) - before
        parameters = list(model.parameters())
        # Where the captured backward pass writes them; None where the captured update has removed them.
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]
        self._needed = _COPIES * sum(tensor.nbytes for tensor in (inputs.images, *parameters))

    def run(self, inputs: PassInputs) -> Tensor:
        """Run the step on a batch; returns its loss."""
        for (_, own), (_, new) in zip(_tensors(self._inputs), _tensors(inputs), strict=True):
            own.copy_(new)
        self._replay()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        return self._loss

    def fits_memory(self) -> bool:
        """Return whether the GPU has memory left for the rest of the training."""
        return self._device.type != "cuda" or torch.cuda.mem_get_info(self._device)[0] >= self._needed

    def is_large(self) -> bool:
        """Return whether an evaluation may need the memory of the graph."""
        return self._device.type == "cuda" and self._n_bytes > _LARGE * torch.cuda.mem_get_info(self._device)[1]


def _reserved_bytes(device: torch.device) -> int:
    """Return the memory of a GPU that torch holds after it has released what it keeps for later; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def _tensors(inputs: PassInputs) -> list[tuple[str, Any]]:
    values = [(field.name, getattr(inputs, field.name)) for field in fields(inputs)]
    return [(name, value) for name, value in values if value is not None]
