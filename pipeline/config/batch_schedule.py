"""Batch sizes that grow in the course of a run."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Section
from pipeline.config.duration import Budget, Duration

UNITS = ("epochs", "steps", "examples")


class BatchShare(Section):
    """A stage of smaller batches.

    Attributes:
        share: of the batch size that the run ends with. Each simulated worker gets that share of its images, so
            their BatchNorm groups are smaller too.
        until: when the next stage begins, counted from the first step of the run.
    """

    share: Annotated[float, Field(gt=0, lt=1)]
    until: Budget


class BatchSchedule(Section):
    """A batch that grows in stages up to the batch size of the run (Smith et al. 2018, Don't Decay the Learning Rate).

    Attributes:
        stages: in order, each with a larger share than the one before; the whole batch follows the last.
        lr_scaling: how the learning rate follows: times the share (`linear`), or its square root (`sqrt`). Null: not
            at all.
    """

    stages: Annotated[tuple[BatchShare, ...], Field(min_length=1)]
    lr_scaling: Literal["linear", "sqrt"] | None = None

    @model_validator(mode="after")
    def _stages_ascend(self) -> Self:
        for number, (before, after) in enumerate(pairwise(self.stages), start=1):
            if after.share <= before.share:
                raise ValueError(
                    f"stages.{number}.share: {after.share:g} is no more than {before.share:g} of the stage before; "
                    "give shares in ascending order"
                )
            if overlap := no_later(after.until, before.until):
                raise ValueError(f"stages.{number}.until: {overlap} of the stage before; give a later end")
        return self

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """Images of a global batch in each stage.

        Raises:
            ValueError: a share of `batch_size` is no whole number of images.
        """
        return tuple(self._size(number, batch_size) for number in range(len(self.stages)))

    def _size(self, number: int, batch_size: int) -> int:
        share = self.stages[number].share
        size = round(share * batch_size)
        # A share such as 1/3 cannot be written exactly.
        if abs(size - share * batch_size) > 1e-6 * batch_size:
            raise ValueError(
                f"stages.{number}.share: {share:g} of batch {batch_size} is {share * batch_size:g} images; "
                "give a share that makes a whole number"
            )
        return size


def no_later(one: Duration, other: Duration) -> str:
    """`5 epochs is no later than 5 epochs`, if both are in one unit and it is so; else empty."""
    for unit in UNITS:
        mine, theirs = getattr(one, unit), getattr(other, unit)
        if mine is not None and theirs is not None and mine <= theirs:
            return f"{mine:g} {unit} is no later than {theirs:g} {unit}"
    return ""
