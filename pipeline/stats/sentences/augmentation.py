"""What missing images cost, augmentation makes up for."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.stats.sentences.evidence import Evidence, Rule, accuracy_rounding, evidence_of
from pipeline.stats.sentences.trials import Replicate, Trial, by, replicates_of

QUANTITY = "augmentation makes the loss of the smaller arms against the full one smaller (points) by"


def augmentation(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """(Smaller arm minus full) with augmentation minus the same without it: the interaction of arm and augmentation.

    Supported where it is above 0, contradicted below (t test over seeds, or draws of the filter where there are
    several). Smaller arms are the filtered and the random ones. Each is compared with the full arm of its own study;
    with and without augmentation both take the steps that they take in the other study, all else is equal. Draws of
    the filter that keep unlike numbers of images, hence take unlike steps at equal epochs, are draws of one setting.
    """
    values: dict[object, dict[Replicate, float]] = {}
    alike = ("extractor", "model", "batch_size", "learning_rate", "weight_decay", "bn_group", "matched", "recipe")
    for key, group in by(trials, *alike).items():
        losses = {name: _against_full(found) for name, found in by(group, "augmented", "study").items()}
        for (with_it, study), augmented in losses.items():
            for (with_it_too, other), plain in losses.items():
                if not with_it or with_it_too:
                    continue
                for name in augmented.keys() & plain.keys():
                    setting = values.setdefault((key, study, other, name.arm), {})
                    setting[name.draw, name.seed] = augmented[name] - plain[name]
    rounding = 2 * accuracy_rounding(trials)
    return evidence_of(replicates_of(values), rule, QUANTITY, scale=100, shared_control=True, rounding=rounding)


class _Run(NamedTuple):
    arm: str
    draw: int
    seed: int
    steps: int
    steps_of_full: int


def _against_full(trials: Sequence[Trial]) -> dict[_Run, float]:
    """Of one study's runs, all else being equal: each smaller arm minus the full one of its seed."""
    full = {trial.seed: trial for trial in trials if trial.arm == "full"}
    return {
        _Run(trial.arm, trial.draw, trial.seed, trial.steps, whole.steps): trial.top1 - whole.top1
        for trial in trials
        if trial.arm != "full" and (whole := full.get(trial.seed))
    }
