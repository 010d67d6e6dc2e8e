"""The critical batch size by branched runs: up to which batch the loss after equally many images is as low.

Merrill et al. 2025, Critical Batch Size Revisited (arXiv 2505.23971): train with a small batch, then continue from the
same weights with batches k times as large and the rate scaled, for equally many images. The critical batch size at this
point of the training is the largest batch whose loss exceeds that of the small batch by at most a tolerance. It assumes
nothing of the gradients, as the noise scale does (`noise_scale`), and takes several runs.

Here every branch repeats the steps before it. They are those of a run whose batch grows once (`BatchSizes`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.durations import BatchStage
from pipeline.schedules import scaled_rate
from pipeline.stats.estimates import Estimate, mean_estimate
from pipeline.training.settings import TrainSettings

Scaling = Literal["linear", "sqrt"]

_CONFIDENCE = 0.95


def branch_images(images: int, batch_size: int, factors: Sequence[int]) -> int:
    """Return the fewest images, at least `images`, that are whole batches of every branch."""
    whole = batch_size * math.lcm(*factors)
    return math.ceil(images / whole) * whole


def branch_settings(
    base: TrainSettings, factor: int, *, after: int, images: int, scaling: Scaling | None
) -> TrainSettings:
    """Return the settings of a run with the batch of `base` for `after` steps, and then one `factor` times as large.

    The rate is constant after the warm-up of `base`, which ends with the small batch. The BatchNorm groups keep their
    size.

    Args:
        images: of the branch, whole batches.
        scaling: how the rate follows the batch; None: it does not.
    """
    size = factor * base.batch_size
    assert images % size == 0, (images, size)
    changed = replace(
        base,
        bn_group=base.bn_group or max(2, base.batch_size // base.simulated_workers),
        batch_size=size,
        batch_stages=(BatchStage(batch_size=base.batch_size, until_step=after),) if factor > 1 else (),
        batch_lr_scaling=scaling if factor > 1 else None,
        learning_rate=scaled_rate(base.learning_rate, size, rule=scaling, reference_batch_size=base.batch_size),
        steps=after + images // size,
        warmup_steps=min(base.warmup_steps, after),
        schedule="constant",
        schedule_options={},
        accuracy_steps=None,
        accuracy_examples=None,
    )
    return changed if factor == 1 else replace(changed, noise_scale_steps=None)


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A batch size after the branch, and its losses.

    Attributes:
        mean_loss: over the seeds, in nats; None if a run diverged.
        excess: of the loss over that of the small batch, paired by seed; None for the small batch, or if one diverged.
        within: whether the mean excess is at most the tolerance.
    """

    factor: int
    batch_size: int
    mean_loss: float | None
    excess: Estimate | None
    within: bool


def compare_branches(
    losses: Mapping[int, Sequence[float | None]], *, batch_size: int, tolerance: float
) -> tuple[list[Branch], int | None]:
    """Compare the losses of the branches with those of factor 1, and return the critical batch size in images.

    Args:
        losses: factor -> a loss for each seed, in nats; None if the run diverged. Factor 1 has only finite ones.
        batch_size: of factor 1.
        tolerance: largest excess that counts as none, in nats.

    Returns:
        The branches by factor; and the largest batch that, like all smaller ones, is within the tolerance. None if all
        are: the critical batch size is then larger than the largest batch tried.
    """
    small = [loss for loss in losses[1] if loss is not None]
    assert len(small) == len(losses[1]), "the small batch diverged"
    branches = []
    for factor in sorted(losses):
        known = [loss for loss in losses[factor] if loss is not None]
        complete = len(known) == len(small)
        excess = None
        if complete and factor > 1:
            differences = [loss - other for loss, other in zip(known, small, strict=True)]
            excess = mean_estimate(differences, _CONFIDENCE)
        branches.append(
            Branch(
                factor=factor,
                batch_size=factor * batch_size,
                mean_loss=math.fsum(known) / len(known) if complete else None,
                excess=excess,
                within=factor == 1 or (excess is not None and excess.mean <= tolerance),
            )
        )
    first_above = next((index for index, branch in enumerate(branches) if not branch.within), None)
    return branches, None if first_above is None else branches[first_above - 1].batch_size
