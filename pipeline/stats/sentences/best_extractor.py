"""ResNet-101 is the best extractor to filter with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.stats.sentences.evidence import Evidence, Rule, accuracy_rounding, evidence_of
from pipeline.stats.sentences.trials import Replicate, Trial, by, replicates_of

BEST = "resnet101"

_Gains = Mapping[object, Mapping[str, Mapping[Replicate, float]]]
"""Setting -> extractor -> replicate -> filtered minus random."""


def best_extractor(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """What ResNet-101's filter gains on as many random images, minus what each other extractor's filter gains.

    Extractors drop unlike shares of the images; against its own random arm, each is credited with its choice alone.
    Supported where ResNet-101's gain is above every other one (the largest of the p-values counts: an
    intersection-union test, Berger 1982, doi:10.1080/00401706.1982.10487790), which takes all extractors of which
    there is any filtered run; contradicted where some other is above it (Bonferroni over those that can be tested).
    The estimate is that against the strongest other one. t tests over seeds, or draws where each extractor has several.
    """
    alike = ("model", "batch_size", "learning_rate", "weight_decay", "bn_group", "augmented", "steps", "recipe")
    chosen = [trial for trial in trials if trial.matched == "steps" and trial.arm in ("filtered", "random")]
    gains: _Gains = {
        key: {extractor: _gain(found) for extractor, found in by(group, "extractor").items()}
        for key, group in by(chosen, *alike).items()
    }
    others = sorted({trial.extractor for trial in chosen if trial.arm == "filtered"} - {BEST})
    rounding = 2 * accuracy_rounding(trials)
    judged = [evidence for other in others if (evidence := _against(gains, other, rule, rounding))]
    if not judged:
        return None
    weakest = max(judged, key=lambda evidence: evidence.p_for)
    of = f"{len(judged)}" if len(judged) == len(others) else f"the {len(judged)} of {len(others)} that can be tested"
    return replace(
        weakest,
        quantity=f"the gain on random images (points) by {BEST} is above that by {weakest.quantity}, "
        f"the strongest rival of {of}, by",
        p_for=weakest.p_for if len(judged) == len(others) else 1.0,
        p_against=min(1.0, len(judged) * min(evidence.p_against for evidence in judged)),
    )


def _gain(trials: Sequence[Trial]) -> dict[Replicate, float]:
    """Filtered minus random, of one extractor and setting."""
    random = {(trial.draw, trial.seed): trial.top1 for trial in trials if trial.arm == "random"}
    return {
        (trial.draw, trial.seed): trial.top1 - random[trial.draw, trial.seed]
        for trial in trials
        if trial.arm == "filtered" and (trial.draw, trial.seed) in random
    }


def _against(gains: _Gains, other: str, rule: Rule, rounding: float) -> Evidence | None:
    values = {}
    for key, found in gains.items():
        best, rival = found.get(BEST, {}), found.get(other, {})
        differences = {replicate: best[replicate] - rival[replicate] for replicate in best.keys() & rival.keys()}
        if differences:
            values[key] = differences
    return evidence_of(replicates_of(values), rule, other, scale=100, rounding=rounding)
