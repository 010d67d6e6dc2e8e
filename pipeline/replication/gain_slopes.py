"""Test the paper's headline: filtering helps more the larger the batch is.

Verdicts at each batch size cannot say at which size filtering begins to help: after Holm each size needs about ten
pairs. The slope of the gain over the logarithm of the batch size is one number per seed.
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
    distinct_groups,
    slope,
    t_test_evidence,
    values_by_replicate,
)
from pipeline.stats.replicates import replicate_sign_flip

CONTROLS = ("full", "random")

MIN_SIZES = 2


def gain_slopes(records: Sequence[RunRecord], criteria: ClaimCriteria) -> Mapping[str, ClaimEvidence]:
    """Return for each control the slope of filtered - control on log2(batch size), in percentage points per doubling.

    Each seed (of each draw of the filter) has a least-squares slope over the batch sizes. The t test and the interval
    use the seeds that have all sizes; `sign_flip` is the p-value of the sign-flip test over the same seeds. Slopes of
    one seed at several learning rates or weight decays are averaged first. Sizes at which a run of either arm diverged
    are left out, then sizes and seeds that lack runs, as in `accuracy_grid`.

    Uses studies that have both arms at MIN_SIZES batch sizes and two seeds or more. A control without such a study
    is left out.
    """
    slopes = {control: _gain_slope(records, control, criteria) for control in CONTROLS}
    return {control: evidence for control, evidence in slopes.items() if evidence}


def gain_by_batch(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slopes against the full arm and against as many random images, in studies with `match: steps`.

    Supported if both are above 0: the larger p counts, an intersection-union test (Berger 1982,
    doi:10.1080/00401706.1982.10487790). Contradicted if one is below 0 (Bonferroni over both). The estimate is that
    of the control with the weaker evidence. Studies with equal epochs are left out: there the smaller arm takes fewer
    steps, more so at larger batches, which adds a slope that filtering does not cause.
    """
    slopes = gain_slopes([record for record in records if record.matched == "steps"], criteria)
    if set(slopes) != set(CONTROLS):
        return None
    weakest = max(slopes, key=lambda control: slopes[control].p_for)
    return replace(
        slopes[weakest],
        quantity=f"for each doubling of the batch size the gain on the {weakest} arm, the weaker of both, grows by "
        "(points)",
        p_against=min(1.0, len(CONTROLS) * min(evidence.p_against for evidence in slopes.values())),
    )


def _gain_slope(records: Sequence[RunRecord], control: str, criteria: ClaimCriteria) -> ClaimEvidence | None:
    arms = [record for record in records if record.arm in ("filtered", control)]
    values: dict[object, dict[Replicate, float]] = {}
    norms, used = [], set[int]()
    for key, group in distinct_groups(arms, "study", "extractor", "model", "learning_rate", "weight_decay").items():
        grid = _gains(group, control)
        if grid is None or len(grid.levels[1]) < MIN_SIZES:
            continue
        draws, sizes = grid.levels[0], np.log2(grid.levels[1])
        values[key] = values_by_replicate(slope(sizes, grid.top1), grid.seeds, draws)
        norms.append(float(np.linalg.norm(sizes - sizes.mean())))
        used.update(grid.levels[1])
    replicates = average_replicates(values)
    if replicates is None:
        return None
    # A gain is the difference of two counts. The slope of rounded gains varies as that of any other values.
    rounding = 2**0.5 * accuracy_rounding(records) * max(1 / norm for norm in norms)
    quantity = f"for each doubling of the batch size the gain on the {control} arm grows by (points)"
    evidence = t_test_evidence(
        replicates, criteria, quantity, scale=100, rounding=rounding, shared_control=control == "full"
    )
    return evidence and replace(
        evidence, sign_flip=float(replicate_sign_flip(replicates.table)), batch_sizes=tuple(sorted(used))
    )


def _gains(records: Sequence[RunRecord], control: str) -> AccuracyGrid | None:
    """Return filtered - control (-1 to 1) by seed, draw of the filter and batch size; None without a pair."""
    # The full arm has one run per seed, for all draws.
    controls = {
        (record.draw if control != "full" else 0, record.seed, record.batch_size): record
        for record in records
        if record.arm == control
    }
    gains = []
    for record in records:
        other = controls.get((record.draw if control != "full" else 0, record.seed, record.batch_size))
        if record.arm == "filtered" and other is not None:
            diverged = record.setting_diverged or other.setting_diverged
            gains.append(replace(record, top1=record.top1 - other.top1, setting_diverged=diverged))
    return accuracy_grid(gains, "draw", "batch_size") if gains else None
