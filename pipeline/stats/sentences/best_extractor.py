"""ResNet-101 is the best extractor to filter with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.stats.sentences.evidence import Evidence, Rule, evidence_of
from pipeline.stats.sentences.trials import Replicate, Trial, by, replicates_of

BEST = "resnet101"

_Filtered = Mapping[object, Mapping[str, Mapping[Replicate, float]]]


def best_extractor(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """The filtered arm by ResNet-101's filter minus that by each other extractor's, all else equal.

    Supported where it is above every other one (the largest of the p-values counts: an intersection-union test,
    Berger 1982, doi:10.1080/00401706.1982.10487790), contradicted where some other is above it (Bonferroni over them).
    The estimate is that against the strongest other one. t tests over seeds, or draws where each extractor has several.
    """
    alike = ("model", "batch_size", "learning_rate", "weight_decay", "bn_group", "augmented", "steps", "recipe")
    chosen = [trial for trial in trials if trial.arm == "filtered" and trial.matched == "steps"]
    filtered: _Filtered = {
        key: {
            extractor: {(trial.draw, trial.seed): trial.top1 for trial in found}
            for extractor, found in by(group, "extractor").items()
        }
        for key, group in by(chosen, *alike).items()
    }
    others = sorted({extractor for found in filtered.values() for extractor in found} - {BEST})
    judged = [evidence for other in others if (evidence := _against(filtered, other, rule))]
    if not judged:
        return None
    weakest = max(judged, key=lambda evidence: evidence.p_for)
    quantity = f"{weakest.quantity}, the strongest rival of {len(judged)},"
    return replace(
        weakest, quantity=quantity, p_against=min(1.0, len(judged) * min(evidence.p_against for evidence in judged))
    )


def _against(filtered: _Filtered, other: str, rule: Rule) -> Evidence | None:
    values = {}
    for key, found in filtered.items():
        best, rival = found.get(BEST, {}), found.get(other, {})
        differences = {replicate: best[replicate] - rival[replicate] for replicate in best.keys() & rival.keys()}
        if differences:
            values[key] = differences
    quantity = f"filtered by {BEST} minus filtered by {other} (points)"
    return evidence_of(replicates_of(values), rule, quantity, scale=100)
