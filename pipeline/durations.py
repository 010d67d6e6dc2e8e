"""Convert durations in epochs or examples into optimizer steps, also for a batch size that changes during the run."""

import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BatchStage:
    """A part of a run with one batch size.

    Attributes:
        batch_size: images of a global batch, > 0.
        until_step: optimizer steps done when the next stage begins.
    """

    batch_size: int
    until_step: int


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """The batch size of every optimizer step.

    Attributes:
        final: images of a global batch after the last stage, > 0.
        stages: in order; their `until_step` ascend, from 1.
    """

    final: int
    stages: tuple[BatchStage, ...] = ()

    @property
    def unique(self) -> list[int]:
        """Every size once, in the order of the run."""
        return list(dict.fromkeys([*(stage.batch_size for stage in self.stages), self.final]))

    def size_at(self, step: int) -> int:
        """Return the images of step `step`, counted from 0."""
        return next((stage.batch_size for stage in self.stages if step < stage.until_step), self.final)

    def steps_per_stage(self, steps: int) -> Iterator[tuple[int, int]]:
        """Yield the batch size and number of steps of each stage of a run of `steps` steps."""
        done = 0
        for stage in self.stages:
            until = min(stage.until_step, steps)
            yield stage.batch_size, until - done
            done = until
        yield self.final, steps - done

    def examples(self, steps: int) -> int:
        """Return the total images of the first `steps` steps."""
        return sum(size * count for size, count in self.steps_per_stage(steps))

    def steps_for(self, examples: float) -> int:
        """Return the fewest steps that process at least `examples` images."""
        done, left = 0, examples
        for stage in self.stages:
            needed = done + _ceil_batches(left, stage.batch_size)
            if needed <= stage.until_step:
                return needed
            left -= stage.batch_size * (stage.until_step - done)
            done = stage.until_step
        return done + _ceil_batches(left, self.final)

    def max_steps_for(self, examples: int) -> int:
        """Return the most steps that process at most `examples` images."""
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
    """Convert a duration, given in exactly one unit, into optimizer steps from the start of the run.

    An epoch is `n_train` images. The count is rounded up, so that the last epoch is complete. The stream
    of samples continues into the next epoch to fill the last batch.

    Args:
        n_train: images in one epoch, > 0.
        batch_sizes: images per optimizer step over all workers.
    """
    units = [value for value in (epochs, steps, examples) if value is not None]
    assert len(units) == 1, units
    if steps is not None:
        return steps
    return batch_sizes.steps_for(examples if examples is not None else (epochs or 0.0) * n_train)
