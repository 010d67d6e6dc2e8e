"""Decide how many seeds a study with interim looks still needs, from its finished runs."""

from collections.abc import Sequence

from pipeline.stats.replicates import seed_differences
from pipeline.stats.runs import Setting
from pipeline.stats.sequential import SequentialDesign, seeds_needed
from pipeline.training.grid import RunSpec
from pipeline.training.result_cache import RunCache


def needed_seeds(
    specs: Sequence[RunSpec],
    keys: Sequence[str],
    cache: RunCache,
    *,
    design: SequentialDesign | None,
    control: str,
    n_images: int,
) -> list[int]:
    """Return the seeds up to the next look, or up to the look that decided.

    Train the missing ones and call it again; the study is complete when nothing is missing. The answer depends on
    the results only, so that an interrupted study continues as an uninterrupted one. Runs of later seeds, which
    another study may have left in the cache, change nothing.

    Args:
        specs: all runs of the study, for one replicate of the filter.
        keys: run keys of the runs; empty for skipped runs.
        design: of the looks; None if the study needs all its seeds.
        control: arm of the primary comparison.
        n_images: test images; every accuracy is a multiple of 1 / n_images.

    Returns:
        Ascending.
    """
    seeds = sorted({spec.settings.seed for spec in specs})
    if design is None:
        return seeds
    for look in design.looks:
        chosen = seeds[:look]
        taken = [(spec, key) for spec, key in zip(specs, keys, strict=True) if spec.settings.seed in chosen]
        if not all(cache.has(key) for _, key in taken if key):
            return chosen
        top1 = {
            (_setting_for(spec), spec.arm, spec.settings.seed): cache.get(key).top1 if key else None
            for spec, key in taken
        }
        if seeds_needed(design, seed_differences(top1, control), step=1 / n_images) <= look:
            return chosen
    return seeds


def _setting_for(spec: RunSpec) -> Setting:
    settings = spec.settings
    return Setting(settings.network, settings.batch_size, spec.learning_rate, settings.weight_decay)
