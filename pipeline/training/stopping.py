"""Which seeds a study with looks still needs, from the runs that the ledger has."""

from collections.abc import Sequence

from pipeline.stats.replicates import seed_differences
from pipeline.stats.runs import Setting
from pipeline.stats.sequential import SequentialDesign, seeds_needed
from pipeline.training.grid import RunSpec
from pipeline.training.result_cache import RunCache


def needed_seeds(
    cells: Sequence[RunSpec],
    keys: Sequence[str],
    ledger: RunCache,
    *,
    design: SequentialDesign | None,
    control: str,
    n_images: int,
) -> list[int]:
    """The seeds up to the next look, or to the one that decided.

    Train what is missing of them and ask again; the study is complete when nothing is missing. The answer depends on
    the results alone, so that an interrupted study goes on as if it had not been interrupted. Runs of later seeds,
    which another study may have left in the ledger, change nothing.

    Args:
        cells: of the whole study, of one draw of the filter.
        keys: of the cells in the ledger; empty for what is skipped.
        design: of the looks; None: the study needs all its seeds.
        control: the arm of the primary comparison.
        n_images: test images, of which every accuracy is a multiple of one part.

    Returns:
        Ascending.
    """
    seeds = sorted({cell.settings.seed for cell in cells})
    if design is None:
        return seeds
    for look in design.looks:
        chosen = seeds[:look]
        taken = [(cell, key) for cell, key in zip(cells, keys, strict=True) if cell.settings.seed in chosen]
        if not all(ledger.has(key) for _, key in taken if key):
            return chosen
        top1 = {
            (_setting_for(cell), cell.arm, cell.settings.seed): ledger.get(key).top1 if key else None
            for cell, key in taken
        }
        if seeds_needed(design, seed_differences(top1, control), step=1 / n_images) <= look:
            return chosen
    return seeds


def _setting_for(cell: RunSpec) -> Setting:
    settings = cell.settings
    return Setting(settings.network, settings.batch_size, cell.learning_rate, settings.weight_decay)
