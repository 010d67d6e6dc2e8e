"""Filtering helps more the larger the batch: the paper's headline as a test.

A verdict at each batch size cannot say at which size filtering begins to help: after Holm it takes ten pairs or so at
every size. The slope of the gain on the logarithm of the batch size is one number of each seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.replication.claim_data import (
    AccuracyGrid,
    ClaimCriteria,
    ClaimEvidence,
    Replicate,
    RunRecord,
    accuracy_grid,
    accuracy_rounding,
    average_replicates,
    drop_subsets,
    group_by,
    slope,
    t_test_evidence,
)
from pipeline.stats.replicates import level_sign_flip

CONTROLS = ("full", "random")

SIZES = 2


def gain_slopes(records: Sequence[RunRecord], rule: ClaimCriteria) -> Mapping[str, ClaimEvidence]:
    """By control: the slope of filtered - control on log2(batch size), in percentage points per doubling.

    Each seed (of each draw of the filter) has a least-squares slope over the batch sizes; the t test and the interval
    are over the seeds that have all sizes, and p of the sign-flip test over them is in the evidence. Slopes of one seed
    at several learning rates or weight decays are averaged first. Where runs are missing, sizes and seeds are left out
    as `accuracy_grid` does, so that a size at which runs diverged goes before any seed does.

    Of studies that have both arms at SIZES batch sizes and two seeds or more; a control without such is left out.
    """
    found = {control: _against(records, control, rule) for control in CONTROLS}
    return {control: evidence for control, evidence in found.items() if evidence}


def gain_by_batch(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """The slopes against the full arm and against as many random images, both in studies with `match: steps`.

    Supported where both are above 0 (the larger p counts: an intersection-union test, Berger 1982,
    doi:10.1080/00401706.1982.10487790), contradicted where one is below (Bonferroni over both). The estimate is that of
    the control with the weaker evidence. At equal epochs the smaller arm takes fewer steps, the more so the larger the
    batch, which has a slope of its own.
    """
    found = gain_slopes([record for record in records if record.matched == "steps"], rule)
    if set(found) != set(CONTROLS):
        return None
    weakest = max(found, key=lambda control: found[control].p_for)
    return replace(
        found[weakest],
        quantity=f"for each doubling of the batch size the gain on the {weakest} arm, the weaker of both, grows by "
        "(points)",
        p_against=min(1.0, len(CONTROLS) * min(evidence.p_against for evidence in found.values())),
    )


def _against(records: Sequence[RunRecord], control: str, rule: ClaimCriteria) -> ClaimEvidence | None:
    chosen = [record for record in records if record.arm in ("filtered", control)]
    values: dict[object, dict[Replicate, float]] = {}
    spreads = []
    for key, found in drop_subsets(
        group_by(chosen, "study", "extractor", "model", "learning_rate", "weight_decay")
    ).items():
        grid = _gains(found, control)
        if grid is None or len(grid.levels[1]) < SIZES:
            continue
        draws, sizes = grid.levels[0], np.log2(grid.levels[1])
        slopes = slope(sizes, grid.top1)
        values[key] = {
            (draw, seed): float(slopes[row, column])
            for row, seed in enumerate(grid.seeds)
            for column, draw in enumerate(draws)
        }
        spreads.append(1 / float(np.linalg.norm(sizes - sizes.mean())))
    replicates = average_replicates(values)
    if replicates is None:
        return None
    # A gain is the difference of two counts; the slope of rounded gains varies as that of any others.
    rounding = 2**0.5 * accuracy_rounding(records) * max(spreads)
    quantity = f"for each doubling of the batch size the gain on the {control} arm grows by (points)"
    evidence = t_test_evidence(replicates, rule, quantity, scale=100, rounding=rounding)
    return evidence and replace(evidence, sign_flip=float(level_sign_flip(replicates.table)))


def _gains(records: Sequence[RunRecord], control: str) -> AccuracyGrid | None:
    """Filtered - control (-1 to 1) by seed, draw of the filter and batch size; None without a pair."""
    # The full arm has one run a seed, whatever the draw.
    other = {
        (record.draw if control != "full" else 0, record.seed, record.batch_size): record.top1
        for record in records
        if record.arm == control
    }
    gains = []
    for record in records:
        key = (record.draw if control != "full" else 0, record.seed, record.batch_size)
        if record.arm == "filtered" and key in other:
            gains.append(replace(record, top1=record.top1 - other[key]))
    return accuracy_grid(gains, "draw", "batch_size") if gains else None
