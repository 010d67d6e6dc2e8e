"""Typical mistakes in the training core, to show that the tests of its exactness detect them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import BatchSlice, GlobalBatch, merge_micro_batches
from pipeline.distributed import Grids, pairwise_sum
from pipeline.training import batch_plan, eval_weights, gradients, loop, state
from pipeline.training.eval_weights import recompute_batch_norm_statistics
from pipeline.training.gradients import TrainLoss, accumulate_gradients
from pipeline.training.settings import TrainSettings
from pipeline.training.step import TrainStep


def _mean_of_means(
    model: nn.Module, train_loss: TrainLoss, batch: GlobalBatch, parts: Sequence[BatchSlice], **_: Any
) -> Tensor:
    """Weight every pass and every rank equally, whatever its number of images."""
    total = torch.zeros((), dtype=torch.float64, device=train_loss.labels.device)
    for index, part in enumerate(parts):
        with distributed.gradient_sync(model, enabled=index == len(parts) - 1):
            loss = train_loss.summed_loss(model, batch, part)
            (loss / part.size / len(parts)).backward()
        total += loss.detach()
    return total


def _averaged_over_ranks(*args: Any, world_size: int, **options: Any) -> Tensor:
    """Forgets that the exchange of gradients averages, where the sum is wanted."""
    return accumulate_gradients(*args, world_size=1, **options)


def _without_the_last_rank(*args: Any, world_size: int, loss_scale: float = 1.0, **options: Any) -> Tensor:
    """Leave out the images of the last rank."""
    share = 0.0 if world_size > 1 and dist.get_rank() == world_size - 1 else 1.0
    return share * accumulate_gradients(*args, world_size=world_size, loss_scale=share * loss_scale, **options)


def _clipped_per_pass(
    model: nn.Module,
    train_loss: TrainLoss,
    batch: GlobalBatch,
    parts: Sequence[BatchSlice],
    *,
    clip_norm: float,
    **options: Any,
) -> Tensor:
    """Clip the accumulated gradient after every pass."""
    total = torch.zeros((), dtype=torch.float64, device=train_loss.labels.device)
    for index, part in enumerate(parts):
        with distributed.gradient_sync(model, enabled=index == len(parts) - 1):
            total += accumulate_gradients(model, train_loss, batch, [part], **options)
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    return total


def _merged_groups(parts: Sequence[BatchSlice], max_size: int) -> list[BatchSlice]:
    """Normalize all images of a pass together."""
    return [BatchSlice(rows=part.rows, group_sizes=(part.size,)) for part in merge_micro_batches(parts, max_size)]


def _stale_statistics(settings: TrainSettings) -> AbstractContextManager[object]:
    """Compute BatchNorm statistics under weights of the past, those before the first step."""

    def recompute(model: nn.Module, *args: Any, **options: Any) -> None:
        built = vars(state)["build_network"](
            settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed
        )
        before = [parameter.detach() for parameter in built.parameters()]
        trained = _exchanged(model, before)
        recompute_batch_norm_statistics(model, *args, **options)
        _exchanged(model, trained)

    return patch.object(eval_weights, "recompute_batch_norm_statistics", recompute)


def _exchanged(model: nn.Module, weights: Sequence[Tensor]) -> list[Tensor]:
    """Set the parameters, and return the earlier ones."""
    earlier = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    return earlier


class _CountsPasses(TrainStep):
    """Advances the schedule and the meter with every pass, up to their last step."""

    def run_step(self, batch: GlobalBatch) -> None:
        steps = self._state.step
        self._state.step = min(self._settings.steps - 1, steps * len(self._batches[batch.size].micro_batches))
        super().run_step(batch)
        self._state.step = steps + 1


def _added_in_float32(_: Grids, index: int, total: Tensor, summand: Tensor) -> None:
    """Round each partial sum, so that the bits depend on how many summands a rank has."""
    total.copy_(total.float() + summand.float())


def _clipping(settings: TrainSettings) -> AbstractContextManager[object]:
    assert settings.clip_norm is not None
    return patch.object(gradients, "accumulate_gradients", partial(_clipped_per_pass, clip_norm=settings.clip_norm))


MUTANTS: dict[str, Callable[[TrainSettings], AbstractContextManager[object]]] = {
    "mean of means": lambda _: patch.object(gradients, "accumulate_gradients", _mean_of_means),
    "mean over ranks": lambda _: patch.object(gradients, "accumulate_gradients", _averaged_over_ranks),
    "missing rank": lambda _: patch.object(gradients, "accumulate_gradients", _without_the_last_rank),
    "merged BatchNorm groups": lambda _: patch.object(batch_plan, "merge_micro_batches", _merged_groups),
    "stale BatchNorm statistics": _stale_statistics,
    "BatchNorm statistics of one rank": lambda _: patch.object(eval_weights, "_sum_in_any_order", pairwise_sum),
    "clipping per micro-batch": _clipping,
    "schedule per micro-step": lambda _: patch.object(loop, "TrainStep", _CountsPasses),
    "sum in float32": lambda _: patch.object(Grids, "add_rounded_", _added_in_float32),
}
"""Name -> context manager that makes the mistake in a run of these settings."""
