"""Options of a run that change its result by rounding at most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from pipeline.distributed import CommConfig
from pipeline.training.checkpointing import Checkpointer
from pipeline.training.state import HistoryRecord
from pipeline.training.step_graph import GraphCapture, capture_cuda_graph


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of how a run is computed; they change its result only by rounding.

    Attributes:
        title: of the progress display.
        micro_batch: samples that pass forward together, at most; `auto` takes what fits the memory.
        comm: how gradients travel between ranks.
        checkpointer: saves the run's state and resumes from it; None saves nothing.
        graph_capture: replays steps as CUDA graphs where it can, see `step_graph`; `auto` does so on a GPU, None never.
        on_record: receives all records of the run whenever one was added, on this rank; changes no result.
    """

    title: str = ""
    micro_batch: int | Literal["auto"] = "auto"
    comm: CommConfig = field(default_factory=CommConfig)
    checkpointer: Checkpointer | None = None
    graph_capture: GraphCapture | Literal["auto"] | None = "auto"
    on_record: Callable[[Sequence[HistoryRecord]], None] | None = None

    def capture_on(self, device: torch.device) -> GraphCapture | None:
        """Return what captures steps on a device."""
        if self.graph_capture == "auto":
            return capture_cuda_graph if device.type == "cuda" else None
        return self.graph_capture
