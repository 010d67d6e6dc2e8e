"""What missing images cost, augmentation makes up for."""

from collections.abc import Sequence

from pipeline.stats.sentences.evidence import Evidence, Rule, evidence_of
from pipeline.stats.sentences.trials import Replicate, Trial, by, replicates_of

QUANTITY = "augmentation makes the loss of the smaller arms against the full one smaller (points) by"


def augmentation(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """(Smaller arm minus full) with augmentation minus the same without it: the interaction of arm and augmentation.

    Supported where it is above 0, contradicted below (t test over seeds, or draws of the filter where there are
    several). Smaller arms are the filtered and the random ones; all else is equal, the steps of each arm too.
    """
    values: dict[object, dict[Replicate, float]] = {}
    alike = ("extractor", "model", "batch_size", "learning_rate", "weight_decay", "bn_group", "matched", "recipe")
    for key, found in by(trials, *alike).items():
        # Equal cells of two studies are one run.
        top1 = {(trial.arm, trial.draw, trial.seed, trial.steps, trial.augmented): trial.top1 for trial in found}
        full_steps = {(seed, steps) for arm, _, seed, steps, _ in top1 if arm == "full"}
        for arm, draw, seed, steps in {name[:4] for name in top1 if name[0] != "full"}:
            for full in {at for of, at in full_steps if of == seed and (key[-2] == "epochs" or at == steps)}:
                names = [(arm, draw, seed, steps, True), ("full", 0, seed, full, True)]
                names += [(arm, draw, seed, steps, False), ("full", 0, seed, full, False)]
                if all(name in top1 for name in names):
                    small, whole, small_plain, whole_plain = (top1[name] for name in names)
                    value = (small - whole) - (small_plain - whole_plain)
                    values.setdefault((key, arm, steps, full), {})[draw, seed] = value
    return evidence_of(replicates_of(values), rule, QUANTITY, scale=100, shared_control=True)
