"""Test the paper's claims about filters, augmentation, BatchNorm, extractors and weight decay."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.replication.claim_data import (
    ClaimCriteria,
    ClaimEvidence,
    Replicate,
    RunRecord,
    accuracy_rounding,
    average_replicates,
    distinct_groups,
    drop_subsets,
    group_by,
    slope,
    t_test_evidence,
)
from pipeline.replication.gain_slopes import CONTROLS
from pipeline.stats.runs import EQUAL_EPOCHS

_AS_GOOD_AS_FULL_QUANTITY = "filtered minus full at equal epochs (points)"


def as_good_as_full(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test filtered minus full in studies with `match: epochs` against minus the margin.

    Supported if it is above minus the margin (non-inferiority), contradicted if it is below. The t test is over seeds,
    or over draws of the filter if there are several. Pairs that whole steps leave at unequal epochs are left out.
    """
    values: dict[object, dict[Replicate, float]] = {}
    arms = [record for record in records if record.matched == "epochs" and record.arm in ("full", "filtered")]
    setting = ("study", "extractor", "model", "batch_size", "learning_rate", "weight_decay")
    for key, group in distinct_groups(arms, *setting).items():
        full = {record.seed: record for record in group if record.arm == "full"}
        differences = {
            (record.draw, record.seed): record.top1 - full[record.seed].top1
            for record in group
            if record.arm == "filtered" and record.seed in full and _equal_epochs(record, full[record.seed])
        }
        if differences:
            values[key] = differences
    return t_test_evidence(
        average_replicates(values), criteria, _AS_GOOD_AS_FULL_QUANTITY, threshold=-criteria.margin, scale=100,
        rounding=2**0.5 * accuracy_rounding(records), shared_control=True,
    )  # fmt: skip


def _equal_epochs(record: RunRecord, other: RunRecord) -> bool:
    return abs(record.epochs - other.epochs) <= EQUAL_EPOCHS * other.epochs


_AUGMENTATION_QUANTITY = "augmentation makes the loss of the smaller arms against the full one smaller (points) by"


def augmentation(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test the interaction of arm and augmentation: (smaller arm - full) with augmentation minus the same without it.

    Supported if it is above 0, contradicted if it is below. The t test is over seeds, or over draws of the filter if
    there are several. Smaller arms are the filtered and the random ones, each compared with the full arm of the same
    study. Both studies have the same numbers of steps, and all other settings are equal. Draws of the filter that
    keep different numbers of images take different numbers of steps at equal epochs. They are draws of one setting.
    """
    values: dict[object, dict[Replicate, float]] = {}
    runs: dict[object, list[RunRecord]] = {}
    shared = ("extractor", "model", "batch_size", "learning_rate", "weight_decay", "bn_group", "matched", "recipe")
    for key, group in group_by(records, *shared).items():
        studies = {name: _pair_with_full(of_study) for name, of_study in group_by(group, "augmented", "study").items()}
        for (is_augmented, study), augmented in studies.items():
            for (other_is_augmented, other), plain in studies.items():
                if not is_augmented or other_is_augmented:
                    continue
                for job in augmented.keys() & plain.keys():
                    setting = (key, study, other, job.arm)
                    interaction = augmented[job].gain - plain[job].gain
                    values.setdefault(setting, {})[job.draw, job.seed] = interaction
                    runs.setdefault(setting, []).extend([*augmented[job], *plain[job]])
    rounding = 2 * accuracy_rounding(records)
    unique = {setting: values[setting] for setting in drop_subsets(runs)}
    return t_test_evidence(average_replicates(unique), criteria, _AUGMENTATION_QUANTITY, scale=100, rounding=rounding)


class _Pair(NamedTuple):
    smaller: RunRecord
    full: RunRecord

    @property
    def gain(self) -> float:
        return self.smaller.top1 - self.full.top1


class _PairKey(NamedTuple):
    arm: str
    draw: int
    seed: int
    steps: int
    full_steps: int


def _pair_with_full(records: Sequence[RunRecord]) -> dict[_PairKey, _Pair]:
    """Pair each run of a smaller arm with the full one of its seed; the records differ in nothing else."""
    full_runs = {record.seed: record for record in records if record.arm == "full"}
    return {
        _PairKey(record.arm, record.draw, record.seed, record.steps, full.steps): _Pair(record, full)
        for record in records
        if record.arm not in ("full", "relabeled") and (full := full_runs.get(record.seed))
    }


_BATCH_NORM_QUANTITY = (
    "BatchNorm in groups of the small batch's size costs a larger batch, beyond half of the small batch's loss,"
)


def batch_norm(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test a large batch in BatchNorm groups of a small batch's size against the large and the small batch.

    Each seed has three runs: batch B in one group, batch B in groups of b < B, and batch b in one group. Supported if
    the groups alone cost more than half of what the small batch loses, contradicted if they cost less (t test over
    seeds). Undecided unless the small batch loses significantly: the larger p of both tests counts.

    Uses the full arm. All other settings are equal; the small batch takes the steps that its study gives it.
    """
    triples: dict[object, dict[Replicate, _Triple]] = {}
    for key, triple in _triples([record for record in records if record.arm == "full"]):
        triples.setdefault(key, {})[0, triple.large.seed] = triple
    excess: dict[object, dict[Replicate, float]] = {}
    loss: dict[object, dict[Replicate, float]] = {}
    runs = {
        key: [record for triple in by_replicate.values() for record in triple] for key, by_replicate in triples.items()
    }
    for key in drop_subsets(runs):
        for replicate, triple in triples[key].items():
            large, grouped, small = (record.top1 for record in triple)
            excess.setdefault(key, {})[replicate] = (large - grouped) - (large - small) / 2
            loss.setdefault(key, {})[replicate] = large - small
    rounding = accuracy_rounding(records)
    loss_evidence = t_test_evidence(
        average_replicates(loss), criteria, "the small batch loses", scale=100, rounding=2**0.5 * rounding
    )
    # The excess is large / 2 - grouped + small / 2.
    rounding *= (0.5**2 + 1 + 0.5**2) ** 0.5
    excess_evidence = t_test_evidence(
        average_replicates(excess), criteria, f"{_BATCH_NORM_QUANTITY} (points)", scale=100, rounding=rounding
    )
    if loss_evidence is None or excess_evidence is None:
        return None
    return replace(
        excess_evidence,
        p_for=max(excess_evidence.p_for, loss_evidence.p_for),
        p_against=max(excess_evidence.p_against, loss_evidence.p_for),
    )


class _Triple(NamedTuple):
    """The runs of one seed: the large batch, the same in small groups, and the small batch."""

    large: RunRecord
    grouped: RunRecord
    small: RunRecord


def _triples(records: Sequence[RunRecord]) -> Iterator[tuple[object, _Triple]]:
    """Yield each setting with the runs of a seed."""
    shared = ("model", "learning_rate", "weight_decay", "augmented")
    for setting, group in group_by(records, *shared).items():
        # Runs whose batch is one BatchNorm group, by seed.
        ungrouped: dict[tuple[str, int], Mapping[int, RunRecord]] = {
            key: {record.seed: record for record in size_runs if record.bn_group == record.batch_size}
            for key, size_runs in group_by(group, "study", "batch_size").items()
        }
        for (study, batch_size), large_runs in ungrouped.items():
            for grouped in group:
                small_runs = ungrouped.get((study, grouped.bn_group), {})
                if grouped.batch_size != batch_size or grouped.bn_group >= batch_size:
                    continue
                large, small = large_runs.get(grouped.seed), small_runs.get(grouped.seed)
                if large and small and (large.steps, large.recipe) == (grouped.steps, grouped.recipe):
                    key = (setting, study, grouped.study, batch_size, grouped.bn_group)
                    yield key, _Triple(large, grouped, small)


BEST = "resnet101"

_Gains = Mapping[object, Mapping[str, Mapping[Replicate, float]]]
"""Setting -> extractor -> replicate -> filtered minus random."""


def best_extractor(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test the gain of ResNet-101's filter on as many random images, minus that of each other extractor's filter.

    Extractors drop different shares of the images. Comparing each with its own random arm credits it with its choice
    alone. Supported if ResNet-101's gain is above every other one: the largest of the p-values counts, an
    intersection-union test (Berger 1982, doi:10.1080/00401706.1982.10487790). It needs a test of every extractor that
    has any filtered run. Contradicted if some other extractor's gain is above it (Bonferroni over those that can be
    tested). The estimate is that against the strongest other extractor. The t tests are over seeds, or over draws of
    the filter if each extractor has several.
    """
    shared = ("model", "batch_size", "learning_rate", "weight_decay", "bn_group", "augmented", "steps", "recipe")
    arms = [record for record in records if record.matched == "steps" and record.arm in ("filtered", "random")]
    gains: _Gains = {
        key: {extractor: _gain(runs) for extractor, runs in group_by(group, "extractor").items()}
        for key, group in group_by(arms, *shared).items()
    }
    others = sorted({record.extractor for record in arms if record.arm == "filtered"} - {BEST})
    rounding = 2 * accuracy_rounding(records)
    tested = [evidence for other in others if (evidence := _gain_difference(gains, other, criteria, rounding))]
    if not tested:
        return None
    weakest = max(tested, key=lambda evidence: evidence.p_for)
    count = f"{len(tested)}" if len(tested) == len(others) else f"the {len(tested)} of {len(others)} that can be tested"
    return replace(
        weakest,
        quantity=f"the gain on random images (points) by {BEST} is above that by {weakest.quantity}, "
        f"the strongest rival of {count}, by",
        p_for=weakest.p_for if len(tested) == len(others) else 1.0,
        p_against=min(1.0, len(tested) * min(evidence.p_against for evidence in tested)),
    )


def _gain(records: Sequence[RunRecord]) -> dict[Replicate, float]:
    """Return filtered minus random for the runs of one extractor and setting."""
    random = {(record.draw, record.seed): record.top1 for record in records if record.arm == "random"}
    return {
        (record.draw, record.seed): record.top1 - random[record.draw, record.seed]
        for record in records
        if record.arm == "filtered" and (record.draw, record.seed) in random
    }


def _gain_difference(gains: _Gains, other: str, criteria: ClaimCriteria, rounding: float) -> ClaimEvidence | None:
    """Test the gain of BEST minus that of the extractor `other`."""
    values = {}
    for key, by_extractor in gains.items():
        best, rival = by_extractor.get(BEST, {}), by_extractor.get(other, {})
        differences = {replicate: best[replicate] - rival[replicate] for replicate in best.keys() & rival.keys()}
        if differences:
            values[key] = differences
    return t_test_evidence(average_replicates(values), criteria, other, scale=100, rounding=rounding)


_WEIGHT_DECAY_QUANTITY = "from the largest weight decay to the smallest the filtered arm gains on the others (points)"


def weight_decay(records: Sequence[RunRecord], criteria: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slope of filtered minus the full arm, and minus the random one, over the weight decay.

    Supported if the slope is negative, contradicted if it is positive. The t test is over seeds, or over draws of the
    filter if there are several. Uses studies that have the filtered arm, a control and two weight decays. Each control
    is a separate setting: one that lacks a run at some weight decay is left out at all of them.
    """
    groups: dict[tuple[object, str], list[RunRecord]] = {}
    weight_decays: dict[object, NDArray[np.float64]] = {}
    for key, group in group_by(records, "study", "extractor", "model", "batch_size", "learning_rate").items():
        weight_decays[key] = np.array(sorted({record.weight_decay for record in group}))
        arms = {record.arm for record in group}
        if len(weight_decays[key]) > 1 and "filtered" in arms:
            for control in sorted(arms.intersection(CONTROLS)):
                groups[key, control] = [record for record in group if record.arm in ("filtered", control)]
    values: dict[object, dict[Replicate, float]] = {
        (key, control): _falls(group, control, weight_decays[key])
        for (key, control), group in drop_subsets(groups).items()
    }
    # Rounding moves the ends of a line through several differences by at most what it moves each difference.
    rounding = 2 * accuracy_rounding(records)
    return t_test_evidence(average_replicates(values), criteria, _WEIGHT_DECAY_QUANTITY, scale=100, rounding=rounding)


def _falls(records: Sequence[RunRecord], control: str, decays: NDArray[np.float64]) -> dict[Replicate, float]:
    """Return the fall of filtered minus control from the smallest to the largest weight decay.

    Replicates that lack a run at some weight decay are left out.
    """
    top1 = {(record.arm, record.draw, record.seed, record.weight_decay): record.top1 for record in records}
    falls = {}
    for draw, seed in {(record.draw, record.seed) for record in records if record.arm == "filtered"}:
        # The full arm has one run per seed, for all draws.
        pairs = [
            (top1.get(("filtered", draw, seed, decay)), top1.get((control, draw * (control != "full"), seed, decay)))
            for decay in decays.tolist()
        ]
        differences = [treated - other for treated, other in pairs if treated is not None and other is not None]
        if len(differences) == len(decays):
            falls[draw, seed] = float(-slope(decays, np.array(differences)) * np.ptp(decays))
    return falls
