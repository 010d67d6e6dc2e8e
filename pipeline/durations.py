"""Durations in epochs, steps or examples, as optimizer steps."""

import math


def to_steps(
    *,
    epochs: float | None = None,
    steps: int | None = None,
    examples: int | None = None,
    n_train: int,
    batch_size: int,
) -> int:
    """Optimizer steps of a duration given in exactly one unit.

    An epoch is `n_train` images. The count is rounded up, so no image of the last epoch is left
    out; the stream of samples goes on into the next epoch to fill the last batch.

    Args:
        n_train: images in one epoch, > 0.
        batch_size: images per optimizer step over all workers, > 0.
    """
    given = [value for value in (epochs, steps, examples) if value is not None]
    assert len(given) == 1, given
    if steps is not None:
        return steps
    wanted = examples if examples is not None else (epochs or 0.0) * n_train
    # 0.1 epochs of 50,000 images is 5,000.000000000001 in floating point and still 5,000.
    return math.ceil(round(wanted / batch_size, 9))
