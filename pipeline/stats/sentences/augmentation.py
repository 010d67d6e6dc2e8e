"""What missing images cost, augmentation makes up for."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.stats.sentences.evidence import Evidence, Rule, accuracy_rounding, evidence_of
from pipeline.stats.sentences.trials import Replicate, Trial, by, distinct, replicates_of

QUANTITY = "augmentation makes the loss of the smaller arms against the full one smaller (points) by"


def augmentation(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """(Smaller arm minus full) with augmentation minus the same without it: the interaction of arm and augmentation.

    Supported where it is above 0, contradicted below (t test over seeds, or draws of the filter where there are
    several). Smaller arms are the filtered and the random ones. Each is compared with the full arm of its own study;
    with and without augmentation both take the steps that they take in the other study, all else is equal. Draws of
    the filter that keep unlike numbers of images, hence take unlike steps at equal epochs, are draws of one setting.
    """
    values: dict[object, dict[Replicate, float]] = {}
    runs: dict[object, list[Trial]] = {}
    alike = ("extractor", "model", "batch_size", "learning_rate", "weight_decay", "bn_group", "matched", "recipe")
    for key, group in by(trials, *alike).items():
        pairs_of = {name: _against_full(found) for name, found in by(group, "augmented", "study").items()}
        for (with_it, study), augmented in pairs_of.items():
            for (with_it_too, other), plain in pairs_of.items():
                if not with_it or with_it_too:
                    continue
                for name in augmented.keys() & plain.keys():
                    setting = (key, study, other, name.arm)
                    interaction = augmented[name].gain - plain[name].gain
                    values.setdefault(setting, {})[name.draw, name.seed] = interaction
                    runs.setdefault(setting, []).extend([*augmented[name], *plain[name]])
    rounding = 2 * accuracy_rounding(trials)
    kept = {setting: values[setting] for setting in distinct(runs)}
    return evidence_of(replicates_of(kept), rule, QUANTITY, scale=100, rounding=rounding)


class _Pair(NamedTuple):
    smaller: Trial
    full: Trial

    @property
    def gain(self) -> float:
        return self.smaller.top1 - self.full.top1


class _Run(NamedTuple):
    arm: str
    draw: int
    seed: int
    steps: int
    steps_of_full: int


def _against_full(trials: Sequence[Trial]) -> dict[_Run, _Pair]:
    """Of one study's runs, all else being equal: each of a smaller arm with the full one of its seed."""
    full = {trial.seed: trial for trial in trials if trial.arm == "full"}
    return {
        _Run(trial.arm, trial.draw, trial.seed, trial.steps, whole.steps): _Pair(trial, whole)
        for trial in trials
        if trial.arm != "full" and (whole := full.get(trial.seed))
    }
