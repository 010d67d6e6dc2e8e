"""Mean curves of what is measured while runs train."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from pipeline.stats.runs import Run, Setting, describe

Quantity = Literal["train_loss", "top1", "test_loss"]
"""Of a run while it trains: mean loss of its training images in nats; of the test images the share classified
correctly, and the mean loss in nats."""


def learning_curves(runs: Sequence[Run], quantity: Quantity, varying: Iterable[str]) -> list[dict[str, Any]]:
    """Mean over the finished runs of each setting and arm, at the records of the first of them.

    Draws of the filter that keep unlike numbers of images have records at unlike steps; between two records a curve is
    taken for a straight line, and it is drawn as far as all of them go.

    Args:
        quantity: `top1` and `test_loss` give no curve of runs that measured them after their last step alone.
        varying: names of the setting's fields that tell one variant from another.

    Returns:
        Rows of `variant`, `batch_size`, `arm`, `n`; `examples`, training images processed, ascending; `values`.
    """
    groups: dict[tuple[Setting, str], list[dict[int, float]]] = defaultdict(list)
    for run in runs:
        if run.finished and (points := _points(run, quantity)):
            groups[run.setting, run.arm].append(points)
    curves = []
    for (setting, arm), found in sorted(groups.items()):
        begin, end = max(map(min, found)), min(map(max, found))
        shared = [at for at in found[0] if begin <= at <= end]
        values = [np.interp(shared, list(points), list(points.values())) for points in found]
        curves.append(
            {
                "variant": describe(setting, varying),
                "batch_size": setting.batch_size,
                "arm": arm,
                "n": len(found),
                "examples": shared,
                "values": np.mean(values, axis=0).tolist(),
            }
        )
    return curves


def _points(run: Run, quantity: Quantity) -> dict[int, float]:
    """Images processed, ascending -> value."""
    if quantity == "top1":
        return dict(run.accuracy_to_end) if run.accuracy else {}
    if quantity == "test_loss":
        return dict(run.test_loss_to_end) if run.test_loss else {}
    return {examples: loss for examples, loss in run.history if loss is not None}
