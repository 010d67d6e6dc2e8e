"""Filtered images like less weight decay than all images, or as many at random."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.sentences.evidence import Evidence, Rule, accuracy_rounding, evidence_of, slope
from pipeline.stats.sentences.trials import Replicate, Trial, by, distinct, replicates_of

QUANTITY = "from the largest weight decay to the smallest the filtered arm gains on the others (points)"


CONTROLS = ("full", "random")


def weight_decay(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """Filtered minus the full arm, and minus the random one, fitted by a line against the weight decay.

    Supported where it falls as the weight decay grows, contradicted where it grows (t test over seeds, or draws of the
    filter where there are several). Where a study has the filtered arm, one of the others and two weight decays. Each
    control is a setting of its own: one that lacks a run at some weight decay is left out at all of them.
    """
    groups: dict[tuple[object, str], list[Trial]] = {}
    decays_of: dict[object, NDArray[np.float64]] = {}
    for key, found in by(trials, "study", "extractor", "model", "batch_size", "learning_rate").items():
        decays_of[key] = np.array(sorted({trial.weight_decay for trial in found}))
        arms = {trial.arm for trial in found}
        if len(decays_of[key]) > 1 and "filtered" in arms:
            for control in sorted(arms.intersection(CONTROLS)):
                groups[key, control] = [trial for trial in found if trial.arm in ("filtered", control)]
    values: dict[object, dict[Replicate, float]] = {
        (key, control): _falls(found, control, decays_of[key]) for (key, control), found in distinct(groups).items()
    }
    # Of the line through several differences it moves the ends by no more than that of each.
    rounding = 2 * accuracy_rounding(trials)
    return evidence_of(replicates_of(values), rule, QUANTITY, scale=100, rounding=rounding)


def _falls(trials: Sequence[Trial], control: str, decays: NDArray[np.float64]) -> dict[Replicate, float]:
    """What filtered minus control loses from the smallest weight decay to the largest, of draws and seeds with all."""
    top1 = {(trial.arm, trial.draw, trial.seed, trial.weight_decay): trial.top1 for trial in trials}
    found = {}
    for draw, seed in {(trial.draw, trial.seed) for trial in trials if trial.arm == "filtered"}:
        # The full arm has one run a seed, whatever the draw.
        pairs = [
            (top1.get(("filtered", draw, seed, decay)), top1.get((control, draw * (control != "full"), seed, decay)))
            for decay in decays.tolist()
        ]
        differences = [treated - other for treated, other in pairs if treated is not None and other is not None]
        if len(differences) == len(decays):
            found[draw, seed] = float(-slope(decays, np.array(differences)) * np.ptp(decays))
    return found
