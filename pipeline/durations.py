"""Durations in epochs, steps or examples, as optimizer steps, where the batch size may change on the way."""

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BatchStage:
    """Images of a global batch, and how many optimizer steps are done when another size follows."""

    batch_size: int
    until_step: int


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """The batch size of every optimizer step.

    Attributes:
        final: images of a global batch after the last stage, > 0.
        stages: in order; their `until_step` ascend from 1 on.
    """

    final: int
    stages: tuple[BatchStage, ...] = ()

    @property
    def unique(self) -> list[int]:
        """Every size once, in the order of the run."""
        return list(dict.fromkeys([*(stage.batch_size for stage in self.stages), self.final]))

    def size_at(self, step: int) -> int:
        """Images of step `step`, counted from 0."""
        return next((stage.batch_size for stage in self.stages if step < stage.until_step), self.final)

    def steps_per_stage(self, steps: int) -> Iterator[tuple[int, int]]:
        """Batch size and number of steps of every stretch of a run of `steps` steps, in order."""
        done = 0
        for stage in self.stages:
            until = min(stage.until_step, steps)
            yield stage.batch_size, until - done
            done = until
        yield self.final, steps - done

    def examples(self, steps: int) -> int:
        """Images of the first `steps` steps together."""
        return sum(size * count for size, count in self.steps_per_stage(steps))

    def steps_for(self, examples: float) -> int:
        """The fewest steps that process so many images."""
        done, left = 0, examples
        for stage in self.stages:
            needed = done + _ceil_batches(left, stage.batch_size)
            if needed <= stage.until_step:
                return needed
            left -= stage.batch_size * (stage.until_step - done)
            done = stage.until_step
        return done + _ceil_batches(left, self.final)

    def max_steps_for(self, examples: int) -> int:
        """The most steps that process no more than so many images."""
        steps = self.steps_for(examples)
        return steps if self.examples(steps) <= examples else steps - 1


def _ceil_batches(examples: float, batch_size: int) -> int:
    # 0.1 epochs of 50,000 images is 5,000.000000000001 in floating point and still 5,000.
    return math.ceil(round(examples / batch_size, 9))


def to_steps(
    *,
    epochs: float | None = None,
    steps: int | None = None,
    examples: int | None = None,
    n_train: int,
    batch_sizes: BatchSizes,
) -> int:
    """Optimizer steps from the first one on of a duration given in exactly one unit.

    An epoch is `n_train` images. The count is rounded up, so no image of the last epoch is left
    out; the stream of samples goes on into the next epoch to fill the last batch.

    Args:
        n_train: images in one epoch, > 0.
        batch_sizes: images per optimizer step over all workers.
    """
    given = [value for value in (epochs, steps, examples) if value is not None]
    assert len(given) == 1, given
    if steps is not None:
        return steps
    return batch_sizes.steps_for(examples if examples is not None else (epochs or 0.0) * n_train)
