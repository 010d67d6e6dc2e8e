"""Count the operations of one training step, and how often the process waits for the device or copies to it.

The step runs on torch's `meta` device, which has shapes and no values. So it needs no GPU, it takes the code path of a
GPU, and whatever reads a value from the device raises an error. Operations are calls of torch's operators in forward
pass, backward pass and update, without views, which start no work.

    python -m benchmarks.step_operations --workers 1 8 32
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.loop_speed import random_images, settings_for
from benchmarks.measuring import print_results
from benchmarks.printing import Row
from pipeline.batching import GlobalBatch, RankBatch, merge_micro_batches, worker_slices
from pipeline.distributed import World
from pipeline.models.layers import GroupedBatchNorm2d, has_dropout
from pipeline.run_log import RunLog
from pipeline.training.evaluation import load_images
from pipeline.training.gradients import TrainLoss
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.state import start_state
from pipeline.training.step import TrainStep

_META = torch.device("meta")
_COPIES = {"aten::_to_copy", "aten::copy_"}
_READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal"}


@dataclass(eq=False)
class StepCounts(TorchDispatchMode):
    """Counts while it is active.

    Attributes:
        operations: by name, without views.
        uploads: copies of host memory to the device.
        reads: by the kind of device, values read from a tensor, for which the process waits; `meta` has none to read.
    """

    operations: Counter[str] = field(default_factory=Counter)
    uploads: int = 0
    reads: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        if not _is_view(func):
            self.operations[name] += 1
        if name in _READS:
            self.reads[args[0].device.type] += 1
        result = func(*args, **(kwargs or {}))
        if name in _COPIES:
            target = args[0] if name == "aten::copy_" else result
            sources = [value for value in args if isinstance(value, Tensor) and value.device.type == "cpu"]
            self.uploads += target.device != torch.device("cpu") and bool(sources)
        return result


def _is_view(func: Any) -> bool:
    """Return whether an operator returns a part of its input, and computes nothing."""
    aliases = [value.alias_info for value in func._schema.returns]
    return func.name() == "aten::_unsafe_view" or any(alias is not None and not alias.is_write for alias in aliases)


def count_step(settings: TrainSettings, *, group_by_group: bool = False) -> StepCounts:
    """Count the second step of a run on the `meta` device.

    Args:
        settings: without fp16, whose loss scale is read once a step, and with a CIFAR stem: products of small maps do
            not know the device.
        group_by_group: normalize each BatchNorm group by an operation of its own, as on a CPU.
    """
    train_step, batches = _on_meta(settings)
    by_group = patch.object(GroupedBatchNorm2d, "_is_one_operation", return_value=False)
    train_step.run_step(next(batches))
    counts = StepCounts()
    with by_group if group_by_group else nullcontext(), counts:
        train_step.run_step(next(batches))
    return counts


def _on_meta(settings: TrainSettings) -> tuple[TrainStep, Iterator[GlobalBatch]]:
    """Return steps on the `meta` device, and their batches."""
    world = World(rank=0, size=1, device=_META)
    size = settings.batch_size
    n = 4 * size
    pixels, labels = random_images(n, settings.format.image_size)
    images = load_images(pixels, settings, training=True, device=_META)
    train_loss = TrainLoss(
        images=images, labels=torch.from_numpy(labels).to(_META), precision=settings.precision, seed=settings.seed
    )
    with patch("pipeline.training.state.OPTIMIZERS", {settings.optimizer: _plain_sgd}):
        state = start_state(settings, world)
    parts = worker_slices(size, settings.simulated_workers, settings.bn_group)
    rank_batch = RankBatch(slices=parts, micro_batches=merge_micro_batches(parts, size))
    batches = (
        GlobalBatch(sample_ids=np.arange(start, start + size), epochs=np.zeros(size, dtype=np.int64))
        for start in range(0, n, size)
    )
    train_step = TrainStep(
        settings, state, replace(train_loss, has_dropout=has_dropout(state.model)), batches={size: rank_batch},
        track_from_step=settings.steps, world=world, options=RunOptions(graph_capture=None), log=RunLog.silent(),
    )  # fmt: skip
    train_step.warm_up(next(batches))
    return train_step, batches


def _plain_sgd(groups: list[dict[str, Any]], learning_rate: float, **options: Any) -> torch.optim.Optimizer:
    """Build an optimizer that updates as many tensors as ours; `meta` has no fused kernels."""
    return torch.optim.SGD(groups, lr=learning_rate, foreach=True, **options)


def main() -> None:
    """Print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 32], help="simulated workers")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for workers in arguments.workers:
        settings = replace(settings_for(arguments), stem="cifar", simulated_workers=workers, steps=2)
        for name, group_by_group in (("group by group", True), ("one operation", False)):
            counts = count_step(settings, group_by_group=group_by_group)
            rows.append(
                {"workers": workers, "batch_norm": name, "operations": counts.operations.total(),
                 "uploads": counts.uploads, "reads": counts.reads["meta"]}
            )  # fmt: skip
    print_results(arguments, rows)


if __name__ == "__main__":
    main()
