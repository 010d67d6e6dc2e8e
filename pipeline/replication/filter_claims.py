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
    drop_subsets,
    group_by,
    slope,
    t_test_evidence,
)
from pipeline.replication.gain_slopes import CONTROLS
from pipeline.stats.runs import EQUAL_EPOCHS

_AS_GOOD_AS_FULL_QUANTITY = "filtered minus full at equal epochs (points)"


def as_good_as_full(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """Test filtered minus full in studies with `match: epochs` against minus the margin.

    Supported where it is above that (non-inferiority), contradicted below (t test over seeds, or draws of the filter
    where there are several). Pairs that whole steps leave at unequal epochs are left out.
    """
    values: dict[object, dict[Replicate, float]] = {}
    chosen = [record for record in records if record.matched == "epochs" and record.arm in ("full", "filtered")]
    alike = ("study", "extractor", "model", "batch_size", "learning_rate", "weight_decay")
    for key, found in drop_subsets(group_by(chosen, *alike)).items():
        full = {record.seed: record for record in found if record.arm == "full"}
        differences = {
            (record.draw, record.seed): record.top1 - full[record.seed].top1
            for record in found
            if record.arm == "filtered" and record.seed in full and _equal_epochs(record, full[record.seed])
        }
        if differences:
            values[key] = differences
    return t_test_evidence(
        average_replicates(values), rule, _AS_GOOD_AS_FULL_QUANTITY, threshold=-rule.margin, scale=100,
        rounding=2**0.5 * accuracy_rounding(records),
    )  # fmt: skip


def _equal_epochs(record: RunRecord, other: RunRecord) -> bool:
    return abs(record.epochs - other.epochs) <= EQUAL_EPOCHS * other.epochs


_AUGMENTATION_QUANTITY = "augmentation makes the loss of the smaller arms against the full one smaller (points) by"


def augmentation(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """(Smaller arm minus full) with augmentation minus the same without it: the interaction of arm and augmentation.

    Supported where it is above 0, contradicted below (t test over seeds, or draws of the filter where there are
    several). Smaller arms are the filtered and the random ones. Each is compared with the full arm of its own study;
    with and without augmentation both take the steps that they take in the other study, all else is equal. Draws of
    the filter that keep unlike numbers of images, hence take unlike steps at equal epochs, are draws of one setting.
    """
    values: dict[object, dict[Replicate, float]] = {}
    runs: dict[object, list[RunRecord]] = {}
    alike = ("extractor", "model", "batch_size", "learning_rate", "weight_decay", "bn_group", "matched", "recipe")
    for key, group in group_by(records, *alike).items():
        pairs_of = {name: _against_full(found) for name, found in group_by(group, "augmented", "study").items()}
        for (with_it, study), augmented in pairs_of.items():
            for (with_it_too, other), plain in pairs_of.items():
                if not with_it or with_it_too:
                    continue
                for name in augmented.keys() & plain.keys():
                    setting = (key, study, other, name.arm)
                    interaction = augmented[name].gain - plain[name].gain
                    values.setdefault(setting, {})[name.draw, name.seed] = interaction
                    runs.setdefault(setting, []).extend([*augmented[name], *plain[name]])
    rounding = 2 * accuracy_rounding(records)
    kept = {setting: values[setting] for setting in drop_subsets(runs)}
    return t_test_evidence(average_replicates(kept), rule, _AUGMENTATION_QUANTITY, scale=100, rounding=rounding)


class _Pair(NamedTuple):
    smaller: RunRecord
    full: RunRecord

    @property
    def gain(self) -> float:
        return self.smaller.top1 - self.full.top1


class _Run(NamedTuple):
    arm: str
    draw: int
    seed: int
    steps: int
    steps_of_full: int


def _against_full(records: Sequence[RunRecord]) -> dict[_Run, _Pair]:
    """Pair each run of a smaller arm with the full one of its seed, in one study and all else equal."""
    full = {record.seed: record for record in records if record.arm == "full"}
    return {
        _Run(record.arm, record.draw, record.seed, record.steps, whole.steps): _Pair(record, whole)
        for record in records
        if record.arm != "full" and (whole := full.get(record.seed))
    }


_BATCH_NORM_QUANTITY = (
    "BatchNorm in groups of the small batch's size costs a larger batch, beyond half of the small batch's loss,"
)


def batch_norm(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """Test a large batch in BatchNorm groups of a small batch's size against the large and the small batch.

    Three runs a seed: batch B in one group, batch B in groups of b < B, batch b in one group. Supported where the
    groups alone cost more than half of what the small batch loses, contradicted where they cost less (t test over
    seeds); neither unless the small batch is sure to lose anything at all (the larger p of both tests counts). Of the
    full arm, equal in everything else; the small batch takes the steps that its study gives it.
    """
    triples: dict[object, dict[Replicate, _Triple]] = {}
    for key, triple in _triples([record for record in records if record.arm == "full"]):
        triples.setdefault(key, {})[0, triple.whole.seed] = triple
    excess: dict[object, dict[Replicate, float]] = {}
    loss: dict[object, dict[Replicate, float]] = {}
    for key in drop_subsets(
        {key: [record for triple in of.values() for record in triple] for key, of in triples.items()}
    ):
        for replicate, triple in triples[key].items():
            whole, grouped, small = (record.top1 for record in triple)
            excess.setdefault(key, {})[replicate] = (whole - grouped) - (whole - small) / 2
            loss.setdefault(key, {})[replicate] = whole - small
    rounding = accuracy_rounding(records)
    losing = t_test_evidence(
        average_replicates(loss), rule, "the small batch loses", scale=100, rounding=2**0.5 * rounding
    )
    # Half of the large batch, all of it in groups, and half of the small batch.
    rounding *= (0.5**2 + 1 + 0.5**2) ** 0.5
    found = t_test_evidence(
        average_replicates(excess), rule, f"{_BATCH_NORM_QUANTITY} (points)", scale=100, rounding=rounding
    )
    if losing is None or found is None:
        return None
    return replace(
        found, p_for=max(found.p_for, losing.p_for), p_against=max(found.p_against, losing.p_for)
    )  # fmt: skip


class _Triple(NamedTuple):
    """The runs of one seed: the large batch, the same in small groups, and the small batch."""

    whole: RunRecord
    grouped: RunRecord
    small: RunRecord


def _triples(records: Sequence[RunRecord]) -> Iterator[tuple[object, _Triple]]:
    """Yield the setting, and the runs of a seed."""
    shared = ("model", "learning_rate", "weight_decay", "augmented")
    for alike, group in group_by(records, *shared).items():
        whole_of: dict[tuple[str, int], Mapping[int, RunRecord]] = {
            key: {record.seed: record for record in found if record.bn_group == record.batch_size}
            for key, found in group_by(group, "study", "batch_size").items()
        }
        for (study, batch_size), whole in whole_of.items():
            for grouped in group:
                small = whole_of.get((study, grouped.bn_group), {})
                if grouped.batch_size != batch_size or grouped.bn_group >= batch_size:
                    continue
                first, last = whole.get(grouped.seed), small.get(grouped.seed)
                if first and last and (first.steps, first.recipe) == (grouped.steps, grouped.recipe):
                    key = (alike, study, grouped.study, batch_size, grouped.bn_group)
                    yield key, _Triple(first, grouped, last)


BEST = "resnet101"

_Gains = Mapping[object, Mapping[str, Mapping[Replicate, float]]]
"""Setting -> extractor -> replicate -> filtered minus random."""


def best_extractor(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """Test the gain of ResNet-101's filter on as many random images, minus that of each other extractor's filter.

    Extractors drop unlike shares of the images; against its own random arm, each is credited with its choice alone.
    Supported where ResNet-101's gain is above every other one (the largest of the p-values counts: an
    intersection-union test, Berger 1982, doi:10.1080/00401706.1982.10487790), which takes all extractors of which
    there is any filtered run; contradicted where some other is above it (Bonferroni over those that can be tested).
    The estimate is that against the strongest other one. t tests over seeds, or draws where each extractor has several.
    """
    alike = ("model", "batch_size", "learning_rate", "weight_decay", "bn_group", "augmented", "steps", "recipe")
    chosen = [record for record in records if record.matched == "steps" and record.arm in ("filtered", "random")]
    gains: _Gains = {
        key: {extractor: _gain(found) for extractor, found in group_by(group, "extractor").items()}
        for key, group in group_by(chosen, *alike).items()
    }
    others = sorted({record.extractor for record in chosen if record.arm == "filtered"} - {BEST})
    rounding = 2 * accuracy_rounding(records)
    tested = [evidence for other in others if (evidence := _against(gains, other, rule, rounding))]
    if not tested:
        return None
    weakest = max(tested, key=lambda evidence: evidence.p_for)
    of = f"{len(tested)}" if len(tested) == len(others) else f"the {len(tested)} of {len(others)} that can be tested"
    return replace(
        weakest,
        quantity=f"the gain on random images (points) by {BEST} is above that by {weakest.quantity}, "
        f"the strongest rival of {of}, by",
        p_for=weakest.p_for if len(tested) == len(others) else 1.0,
        p_against=min(1.0, len(tested) * min(evidence.p_against for evidence in tested)),
    )


def _gain(records: Sequence[RunRecord]) -> dict[Replicate, float]:
    """Return filtered minus random, of one extractor and setting."""
    random = {(record.draw, record.seed): record.top1 for record in records if record.arm == "random"}
    return {
        (record.draw, record.seed): record.top1 - random[record.draw, record.seed]
        for record in records
        if record.arm == "filtered" and (record.draw, record.seed) in random
    }


def _against(gains: _Gains, other: str, rule: ClaimCriteria, rounding: float) -> ClaimEvidence | None:
    values = {}
    for key, found in gains.items():
        best, rival = found.get(BEST, {}), found.get(other, {})
        differences = {replicate: best[replicate] - rival[replicate] for replicate in best.keys() & rival.keys()}
        if differences:
            values[key] = differences
    return t_test_evidence(average_replicates(values), rule, other, scale=100, rounding=rounding)


_WEIGHT_DECAY_QUANTITY = "from the largest weight decay to the smallest the filtered arm gains on the others (points)"


def weight_decay(records: Sequence[RunRecord], rule: ClaimCriteria) -> ClaimEvidence | None:
    """Test the slope of filtered minus the full arm, and minus the random one, over the weight decay.

    Supported where it falls as the weight decay grows, contradicted where it grows (t test over seeds, or draws of the
    filter where there are several). Where a study has the filtered arm, one of the others and two weight decays. Each
    control is a setting of its own: one that lacks a run at some weight decay is left out at all of them.
    """
    groups: dict[tuple[object, str], list[RunRecord]] = {}
    decays_of: dict[object, NDArray[np.float64]] = {}
    for key, found in group_by(records, "study", "extractor", "model", "batch_size", "learning_rate").items():
        decays_of[key] = np.array(sorted({record.weight_decay for record in found}))
        arms = {record.arm for record in found}
        if len(decays_of[key]) > 1 and "filtered" in arms:
            for control in sorted(arms.intersection(CONTROLS)):
                groups[key, control] = [record for record in found if record.arm in ("filtered", control)]
    values: dict[object, dict[Replicate, float]] = {
        (key, control): _falls(found, control, decays_of[key]) for (key, control), found in drop_subsets(groups).items()
    }
    # Of the line through several differences it moves the ends by no more than that of each.
    rounding = 2 * accuracy_rounding(records)
    return t_test_evidence(average_replicates(values), rule, _WEIGHT_DECAY_QUANTITY, scale=100, rounding=rounding)


def _falls(records: Sequence[RunRecord], control: str, decays: NDArray[np.float64]) -> dict[Replicate, float]:
    """Return the fall of filtered minus control from the smallest to the largest weight decay, if none is missing."""
    top1 = {(record.arm, record.draw, record.seed, record.weight_decay): record.top1 for record in records}
    found = {}
    for draw, seed in {(record.draw, record.seed) for record in records if record.arm == "filtered"}:
        # The full arm has one run a seed, whatever the draw.
        pairs = [
            (top1.get(("filtered", draw, seed, decay)), top1.get((control, draw * (control != "full"), seed, decay)))
            for decay in decays.tolist()
        ]
        differences = [treated - other for treated, other in pairs if treated is not None and other is not None]
        if len(differences) == len(decays):
            found[draw, seed] = float(-slope(decays, np.array(differences)) * np.ptp(decays))
    return found
