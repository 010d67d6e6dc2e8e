"""Trained for the same epochs, the filtered images are at least as good as all of them."""

from collections.abc import Sequence

from pipeline.stats.runs import EQUAL_EPOCHS
from pipeline.stats.sentences.evidence import Evidence, Rule, accuracy_rounding, evidence_of
from pipeline.stats.sentences.trials import Replicate, Trial, by, distinct, replicates_of

QUANTITY = "filtered minus full at equal epochs (points)"


def as_good_as_full(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """Filtered minus full in studies with `match: epochs`, against minus the margin.

    Supported where it is above that (non-inferiority), contradicted below (t test over seeds, or draws of the filter
    where there are several). Pairs that whole steps leave at unequal epochs are left out.
    """
    values: dict[object, dict[Replicate, float]] = {}
    chosen = [trial for trial in trials if trial.matched == "epochs" and trial.arm in ("full", "filtered")]
    alike = ("study", "extractor", "model", "batch_size", "learning_rate", "weight_decay")
    for key, found in distinct(by(chosen, *alike)).items():
        full = {trial.seed: trial for trial in found if trial.arm == "full"}
        differences = {
            (trial.draw, trial.seed): trial.top1 - full[trial.seed].top1
            for trial in found
            if trial.arm == "filtered" and trial.seed in full and _equal_epochs(trial, full[trial.seed])
        }
        if differences:
            values[key] = differences
    return evidence_of(
        replicates_of(values), rule, QUANTITY, threshold=-rule.margin, scale=100,
        rounding=2**0.5 * accuracy_rounding(trials),
    )  # fmt: skip


def _equal_epochs(trial: Trial, other: Trial) -> bool:
    return abs(trial.epochs - other.epochs) <= EQUAL_EPOCHS * other.epochs
