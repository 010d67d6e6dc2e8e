"""The test of the effective batch: the filtered arm at batch s^2 B against the full arm at batch B, at equal steps."""

from typing import Annotated

from pydantic import Field

from pipeline.config.base import Positive, Section

TREATED, CONTROL = "filtered", "full"
"""Arms of the test."""


class EquivalentBatch(Section):
    """Is the filtered arm at batch s^2 B worth as much as the full arm at batch B, at equal steps?

    The law that it tests: symmetric wrong labels, a share a of all over K classes, multiply the mean gradient by
    1 - aK / (K - 1) and leave its variance about the same, so that the effective batch is (1 - aK / (K - 1))^2 B (after
    Rolnick et al. 2017, arXiv 1705.10694). The test adds the runs of the filtered arm at batch s^2 B to the grid. They
    have the steps, the warm-up and the schedule of the full arm at batch B, in steps. `lr_scaling: sqrt` also gives
    them s times its rate, so that by the law the updates of SGD have equal mean and equal noise.

    Attributes:
        gradient_scale: s, the factor of the full arm, 1 - aK / (K - 1), divided by that of the filtered arm, which is
            1 if the filter drops all wrong labels. With a fifth of the labels of ten classes wrong, s is 0.778.
        batch_sizes: B, of the study's batch sizes; null: all of them. s^2 B is rounded to the nearest multiple of
            `simulated_workers` and need not be one of the study's sizes.
    """

    gradient_scale: Annotated[float, Field(gt=0, lt=1)]
    batch_sizes: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None

    def sizes(self, batch_sizes: tuple[int, ...], simulated_workers: int) -> dict[int, int]:
        """Return B -> s^2 B, rounded; both of the global batch.

        Args:
            batch_sizes: of the study.

        Raises:
            ValueError: s^2 B is rounded to B itself.
        """
        chosen = self.batch_sizes or batch_sizes
        rounded = {
            size: max(1, round(self.gradient_scale**2 * size / simulated_workers)) * simulated_workers
            for size in chosen
        }
        for size, smaller in rounded.items():
            if smaller >= size:
                raise ValueError(
                    f"gradient_scale: {self.gradient_scale:g} squared times batch {size} is {smaller} in whole images "
                    f"of {simulated_workers} simulated workers; use a larger batch, fewer workers or a smaller scale"
                )
        return rounded
