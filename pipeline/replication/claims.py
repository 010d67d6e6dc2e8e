"""The claims of Gahlot et al. (2020), what each needs for a test, and the outcome of all tests together."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeline.replication.batch_size_claims import SIZES, best_batch, parting_curves, sudden_drop, variance
from pipeline.replication.claim_data import ClaimCriteria, ClaimEvidence, RunRecord
from pipeline.replication.filter_claims import as_good_as_full, augmentation, batch_norm, best_extractor, weight_decay
from pipeline.replication.gain_slopes import gain_by_batch
from pipeline.stats.hypothesis_tests import holm

ClaimOutcome = Literal["supported", "contradicted", "undecided", "not testable here"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of Gahlot et al. (2020).

    Attributes:
        meaning: the claim in our words.
        needs: what a study must have for a test.
        evaluate: returns the evidence of runs; None if no study has the required runs.
        decides: what may decide the claim if the runs leave it undecided.
    """

    meaning: str
    needs: str
    evaluate: Callable[[Sequence[RunRecord], ClaimCriteria], ClaimEvidence | None]
    decides: str = "more seeds"


CLAIMS: Mapping[str, Claim] = {
    "gain_by_batch": Claim(
        meaning="Filtering helps more the larger the batch is, against all images and against as many random ones.",
        needs="filtered, full and random arm, 2 batch_sizes, match: steps, 2 seeds or more that have all sizes",
        evaluate=gain_by_batch,
        decides="more seeds; batch_sizes further apart",
    ),
    "best_batch": Claim(
        meaning="Which batch size is best depends on the learning rate.",
        needs="full arm, 2 learning_rates, 3 batch_sizes that reach beyond the best one at both ends, 2 seeds or more",
        evaluate=best_batch,
        decides="more seeds; batch_sizes a doubling apart that reach beyond the best one at every rate",
    ),
    "parting_curves": Claim(
        meaning="At low learning rates the curves of accuracy against batch size of different networks coincide and "
        "peak at the same size; at high rates they part.",
        needs="full arm, 2 models, 2 learning_rates, 3 batch_sizes that reach beyond the best one of each model at "
        "both ends, 2 seeds or more",
        evaluate=parting_curves,
    ),
    "sudden_drop": Claim(
        meaning="Beyond the best batch size large networks lose accuracy suddenly, small ones gradually.",
        needs="full arm, models of resnet18 or 34 and of resnet50, 101 or 152, 2 batch_sizes "
        "or more a doubling apart beyond the best one of each, 3 seeds or more",
        evaluate=sudden_drop,
    ),
    "batch_norm": Claim(
        meaning="Small batches lose accuracy because BatchNorm's statistics come from few images.",
        needs="full arm, a small and a large batch size with one BatchNorm group each, a second study of the large one "
        "with recipe.bn_group the small one, equal otherwise, 2 seeds or more",
        evaluate=batch_norm,
    ),
    "weight_decay": Claim(
        meaning="The advantage of filtered images over the others is largest with little weight decay.",
        needs="filtered arm and full or random, 2 weight_decays, 2 seeds or more",
        evaluate=weight_decay,
    ),
    "variance": Claim(
        meaning="Accuracy varies more between runs the larger the batch is.",
        needs="5 batch_sizes and 3 seeds or more",
        evaluate=variance,
        decides=f"more batch_sizes ({SIZES} give p = {2 / math.factorial(SIZES):.2g} at best, before Holm, with any "
        "number of seeds); or more seeds",
    ),
    "augmentation": Claim(
        meaning="Augmentation compensates for the missing images of smaller arms.",
        needs="full arm and a smaller one, two studies that differ in recipe.augmentation alone, one without any, "
        "2 seeds or more",
        evaluate=augmentation,
    ),
    "as_good_as_full": Claim(
        meaning="After equal epochs filtered images give at least the accuracy of all images.",
        needs="full and filtered arm, match: epochs, 2 seeds or more",
        evaluate=as_good_as_full,
    ),
    "best_extractor": Claim(
        meaning="ResNet-101 is the best extractor for the filter.",
        needs="filtered and random arm, studies with filter_network resnet101 and another one, equal otherwise, "
        "match: steps, 2 seeds or more",
        evaluate=best_extractor,
        decides="more seeds, of every extractor",
    ),
}


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """The outcome of one claim.

    Attributes:
        evidence: None if no study has the required runs.
        p: two-sided, Holm-adjusted for all claims that could be tested; None without evidence.
    """

    name: str
    outcome: ClaimOutcome
    evidence: ClaimEvidence | None
    p: float | None


def evaluate_claims(records: Sequence[RunRecord], criteria: ClaimCriteria) -> list[ClaimResult]:
    """Evaluate all of `CLAIMS`, in their order.

    Holm's method adjusts the two-sided p-values. If each test keeps its level, the chance that any claim is wrongly
    called supported or contradicted is at most `criteria.alpha`.
    """
    results = {name: claim.evaluate(records, criteria) for name, claim in CLAIMS.items()}
    testable = {name: evidence for name, evidence in results.items() if evidence}
    adjusted = dict(zip(testable, holm([evidence.p for evidence in testable.values()]).tolist(), strict=True))
    return [
        ClaimResult(
            name=name, outcome=_outcome(evidence, adjusted.get(name), criteria), evidence=evidence, p=adjusted.get(name)
        )
        for name, evidence in results.items()
    ]  # fmt: skip


def _outcome(evidence: ClaimEvidence | None, p: float | None, criteria: ClaimCriteria) -> ClaimOutcome:
    if evidence is None or p is None:
        return "not testable here"
    if p > criteria.alpha:
        return "undecided"
    return "supported" if evidence.p_for < evidence.p_against else "contradicted"
