"""The best batch size of each learning rate (Gahlot, Yin and Shankar 2020, fig. 4)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.stats.best_tried import BestTried, best_tried
from pipeline.stats.runs import Run, Setting, settings_of


@dataclass(frozen=True, kw_only=True)
class BestBatch(BestTried):
    """Of one arm at one learning rate; sizes in images, their mean over the seeds a geometric one.

    Attributes:
        setting: with the batch size `of_means`.
        batch_sizes: those tried, ascending.
    """

    setting: Setting
    arm: str
    batch_sizes: list[int]


def best_by_rate(runs: Sequence[Run], confidence: float) -> list[BestBatch]:
    """An entry for each model, weight decay, arm and learning rate, by ascending rates; none without two of both axes.

    A run that diverged is never the best; a size that some seed's cell skipped was not tried. Left out are rates of
    which fewer than two sizes were tried or some seed has no finished run, and arms that the filter draws several
    times, which have no single run of a seed.

    Args:
        runs: of one study.
        confidence: of each interval, in (0, 1).
    """
    settings = settings_of(runs)
    if min(len({setting.learning_rate for setting in settings}), len({setting.batch_size for setting in settings})) < 2:
        return []
    arms = list(dict.fromkeys(run.arm for run in runs))
    groups: dict[tuple[str, float, int, float], list[Run]] = defaultdict(list)
    for run in runs:
        setting = run.setting
        groups[setting.model, setting.weight_decay, arms.index(run.arm), setting.learning_rate].append(run)
    found = (_best_batch(groups[key], confidence) for key in sorted(groups))
    return [best for best in found if best]


def _best_batch(runs: Sequence[Run], confidence: float) -> BestBatch | None:
    """Of runs that differ in batch size and seed alone."""
    skipped = {run.setting.batch_size for run in runs if run.status == "skipped"}
    sizes, seeds = sorted({run.setting.batch_size for run in runs} - skipped), sorted({run.seed for run in runs})
    if len(sizes) < 2 or len({run.filter_network for run in runs}) > 1:
        return None
    top1 = np.full((len(sizes), len(seeds)), np.nan)
    for run in runs:
        if run.top1 is not None and run.setting.batch_size in sizes:
            top1[sizes.index(run.setting.batch_size), seeds.index(run.seed)] = run.top1
    if not np.isfinite(top1).any(axis=0).all():
        return None
    best = best_tried(top1, sizes, confidence, ends=(sizes[0], sizes[-1]), geometric=True)
    setting = runs[0].setting._replace(batch_size=int(best.of_means))
    return BestBatch(**vars(best), setting=setting, arm=runs[0].arm, batch_sizes=sizes)
