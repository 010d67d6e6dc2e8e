"""Confounded designs: apparent evidence for a claim that has another cause."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.replication import CLAIMS, RunRecord
from tests.fixtures.claim_records import CRITERIA, claims, grid, hardly_above, make_records, outcome

SIZES = [16, 32, 64, 128, 256]
DECAYS = [0.005, 0.01, 0.0135]


def test_a_control_that_is_missing_at_one_weight_decay_is_in_none() -> None:
    """Random images are 3 points worse, at every weight decay."""

    def make(rng: np.random.Generator, seeds: int) -> list[RunRecord]:
        arms = ["full", "filtered", "random"]
        records = make_records(
            rng, lambda t: 0.9 - 0.03 * (t.arm == "random"), seeds=seeds, arm=arms, weight_decay=DECAYS
        )
        return [t for t in records if not (t.arm == "random" and t.weight_decay == 0.0135)]

    assert sum(claims("weight_decay", make, 60, seeds=5)) <= hardly_above(CRITERIA.alpha, 60)
    evidence = CLAIMS["weight_decay"].evaluate(make(np.random.default_rng(0), 5), CRITERIA)
    assert evidence is not None
    assert (evidence.settings, evidence.left_out) == (1, 1)


def test_networks_that_peak_together_at_high_rates_do_not_part() -> None:
    """Their accuracies part, but their best sizes come together: 32 and 128 at the low rate, 64 at the high one."""

    def level(record: RunRecord) -> float:
        sign = 1 if record.model == "resnet50" else -1
        low = record.learning_rate == 0.05
        best = 6 + sign * low
        return 0.9 + sign * (0.0 if low else 0.09) - 0.02 * (math.log2(record.batch_size) - best) ** 2

    axes: dict[str, Any] = {"batch_size": SIZES, "learning_rate": [0.05, 0.2], "model": ["resnet18", "resnet50"]}
    evidence = CLAIMS["parting_curves"].evaluate(
        grid(level, noise=0.002, **axes)(np.random.default_rng(0), 6), CRITERIA
    )
    assert outcome(evidence) == "contradicted"


def test_draws_that_keep_unequal_numbers_of_images_are_one_setting() -> None:
    """At equal epochs they take 95, 96 and 97 steps of the full arm's 100."""
    rng, records = np.random.default_rng(0), []
    for draw in range(3):
        arms = ["full", "filtered"] if draw == 0 else ["filtered"]
        axes: dict[str, Any] = {"matched": ["epochs"], "arm": arms, "augmented": [False, True], "draw": [draw]}
        made = make_records(rng, lambda t: 0.8 - 0.02 * (t.arm != "full" and not t.augmented), noise=0.001, **axes)
        records += [replace(t, steps=100 if t.arm == "full" else 95 + draw) for t in made]
    evidence = CLAIMS["augmentation"].evaluate(records, CRITERIA)
    assert evidence is not None
    assert (evidence.n, evidence.unit, evidence.settings) == (3, "replicate of the filter", 1)
    assert outcome(evidence) == "supported"


def test_runs_of_another_budget_are_no_pairs() -> None:
    rng = np.random.default_rng(0)
    axes: dict[str, Any] = {"arm": ["full", "random"], "matched": ["epochs"]}
    plain = make_records(rng, lambda t: 0.8, augmented=[False], **axes)
    longer = make_records(rng, lambda t: 0.9, augmented=[True], study=["longer"], **axes)
    assert CLAIMS["augmentation"].evaluate(plain + [replace(t, steps=200) for t in longer], CRITERIA) is None


def _extractors(**gains: float) -> list[RunRecord]:
    def level(record: RunRecord) -> float:
        # What an extractor drops costs 2 points of the random images too where it drops much.
        return 0.9 - 0.02 * (record.extractor == "resnet18") + (record.arm == "filtered") * gains[record.extractor]

    axes: dict[str, Any] = {"arm": ["filtered", "random"], "extractor": list(gains)}
    return make_records(np.random.default_rng(0), level, seeds=6, noise=0.002, **axes)


def test_no_extractor_is_the_best_before_all_have_been_compared() -> None:
    records = _extractors(resnet18=0.0, resnet101=0.02, resnet152=0.03)
    one_seed = [t for t in records if t.extractor != "resnet152" or t.seed == 0]
    evidence = CLAIMS["best_extractor"].evaluate(one_seed, CRITERIA)
    assert evidence is not None
    assert outcome(evidence) == "undecided"
    assert re.findall(r"(\d+) of (\d+)", evidence.quantity) == [("1", "2")]
    assert outcome(CLAIMS["best_extractor"].evaluate(records, CRITERIA)) == "contradicted"


def test_an_extractor_is_not_credited_with_dropping_less() -> None:
    """ResNet-18's filter drops more images, which costs accuracy, but chooses them as well."""
    assert (
        outcome(CLAIMS["best_extractor"].evaluate(_extractors(resnet18=0.01, resnet101=0.01), CRITERIA)) == "undecided"
    )
    assert (
        outcome(CLAIMS["best_extractor"].evaluate(_extractors(resnet18=0.0, resnet101=0.01), CRITERIA)) == "supported"
    )
