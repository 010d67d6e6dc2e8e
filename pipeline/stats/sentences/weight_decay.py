"""Filtered images like less weight decay than all images, or as many at random."""

from collections.abc import Sequence

import numpy as np

from pipeline.stats.sentences.evidence import Evidence, Rule, evidence_of, slope
from pipeline.stats.sentences.trials import Replicate, Trial, by, replicates_of

QUANTITY = "from the largest weight decay to the smallest the filtered arm gains on the others (points)"


def weight_decay(trials: Sequence[Trial], rule: Rule) -> Evidence | None:
    """Filtered minus the mean of the full and the random arm, fitted by a line against the weight decay.

    Supported where it falls as the weight decay grows, contradicted where it grows (t test over seeds, or draws of the
    filter where there are several). Where a study has the filtered arm, one of the others and two weight decays.
    """
    values: dict[object, dict[Replicate, float]] = {}
    for key, found in by(trials, "study", "extractor", "model", "batch_size", "learning_rate").items():
        decays = sorted({trial.weight_decay for trial in found})
        top1 = {(trial.arm, trial.draw, trial.seed, trial.weight_decay): trial.top1 for trial in found}
        for draw, seed in {(trial.draw, trial.seed) for trial in found if trial.arm == "filtered"}:
            differences = [_difference(top1, draw, seed, decay) for decay in decays]
            if len(decays) > 1 and None not in differences:
                fall = -slope(np.array(decays), np.array(differences, dtype=np.float64)) * (decays[-1] - decays[0])
                values.setdefault(key, {})[draw, seed] = float(fall)
    shared = any(trial.arm == "full" for trial in trials)
    return evidence_of(replicates_of(values), rule, QUANTITY, scale=100, shared_control=shared)


def _difference(top1: dict[tuple[str, int, int, float], float], draw: int, seed: int, decay: float) -> float | None:
    filtered = top1.get(("filtered", draw, seed, decay))
    # The full arm has one run a seed, whatever the draw.
    others = [top1.get(("full", 0, seed, decay)), top1.get(("random", draw, seed, decay))]
    known = [value for value in others if value is not None]
    return None if filtered is None or not known else filtered - float(np.mean(known))
