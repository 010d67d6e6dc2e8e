"""What small batches lose, they lose through BatchNorm's statistics of few images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipeline.stats.sentences.evidence import Evidence, Rule, accuracy_rounding, evidence_of
from pipeline.stats.sentences.trials import Replicate, Trial, by, distinct, replicates_of

QUANTITY = "BatchNorm in groups of the small batch's size costs a larger batch, beyond half of the small batch's loss,"


def batch_norm(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """A large batch in BatchNorm groups as small as a small batch, against the large and the small batch themselves.

    Three runs a seed: batch B in one group, batch B in groups of b < B, batch b in one group. Supported where the
    groups alone cost more than half of what the small batch loses, contradicted where they cost less (t test over
    seeds); neither unless the small batch is sure to lose anything at all (the larger p of both tests counts). Of the
    full arm, equal in everything else; the small batch takes the steps that its study gives it.
    """
    triples: dict[object, dict[Replicate, _Triple]] = {}
    for key, triple in _triples([trial for trial in trials if trial.arm == "full"]):
        triples.setdefault(key, {})[0, triple.whole.seed] = triple
    excess: dict[object, dict[Replicate, float]] = {}
    loss: dict[object, dict[Replicate, float]] = {}
    for key in distinct({key: [trial for triple in of.values() for trial in triple] for key, of in triples.items()}):
        for replicate, triple in triples[key].items():
            whole, grouped, small = (trial.top1 for trial in triple)
            excess.setdefault(key, {})[replicate] = (whole - grouped) - (whole - small) / 2
            loss.setdefault(key, {})[replicate] = whole - small
    rounding = accuracy_rounding(trials)
    losing = evidence_of(replicates_of(loss), rule, "the small batch loses", scale=100, rounding=2**0.5 * rounding)
    # Half of the large batch, all of it in groups, and half of the small batch.
    rounding *= (0.5**2 + 1 + 0.5**2) ** 0.5
    found = evidence_of(replicates_of(excess), rule, f"{QUANTITY} (points)", scale=100, rounding=rounding)
    if losing is None or found is None:
        return None
    return replace(
        found, p_for=max(found.p_for, losing.p_for), p_against=max(found.p_against, losing.p_for)
    )  # fmt: skip


class _Triple(NamedTuple):
    """Of one seed: the large batch, the same in small groups, and the small batch."""

    whole: Trial
    grouped: Trial
    small: Trial


def _triples(trials: Sequence[Trial]) -> Iterator[tuple[object, _Triple]]:
    """What is compared, and the runs of a seed."""
    shared = ("model", "learning_rate", "weight_decay", "augmented")
    for alike, group in by(trials, *shared).items():
        whole_of: dict[tuple[str, int], Mapping[int, Trial]] = {
            key: {trial.seed: trial for trial in found if trial.bn_group == trial.batch_size}
            for key, found in by(group, "study", "batch_size").items()
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
