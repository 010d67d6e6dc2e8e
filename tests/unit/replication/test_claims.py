"""Each claim on simulated runs: supported if true, contradicted if false, and wrong no more often than stated."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from pipeline.replication import CLAIMS, RunRecord, evaluate_claims
from tests.fixtures.claim_records import CRITERIA, Level, Make, changed, claims, grid, hardly_above, make_records

SIMULATIONS = 60
MANY = 600


@dataclass(frozen=True)
class ClaimCase:
    """Scenarios in which a claim is true, false, and on the border between both."""

    true: Make
    false: Make
    border: Make


def _peak(record: RunRecord, at: float, width: float = 1.0) -> float:
    """A parabola of 2 points a doubling away from batch size 2 ** at."""
    return 0.9 - 0.02 * ((math.log2(record.batch_size) - at) / width) ** 2


_SIZES = [16, 32, 64, 128, 256]
_RATES = [0.05, 0.1, 0.2]
_NETS = ["resnet18", "resnet34", "resnet50", "resnet101"]
_RANK = {name: rank for rank, name in enumerate(_NETS)}


def _curves_by_rate(growth: float, apart: tuple[float, float]) -> Level:
    """Networks' accuracies diverge by `growth` per doubling of the rate, best sizes from apart[0] to apart[1]."""

    def level(record: RunRecord) -> float:
        doublings, rank = math.log2(record.learning_rate / 0.05), (_RANK[record.model] - 1.5) / 1.5
        peak = 6 + rank * (apart[0] + (apart[1] - apart[0]) * doublings / 2)
        return _peak(record, peak) + (0.015 + 1.5 * growth * doublings) * rank

    return level


def _drops(sudden: str) -> Level:
    """Networks of the kind `sudden` lose 8 points at once, the others 2 a doubling."""

    def level(record: RunRecord) -> float:
        large = record.model in ("resnet50", "resnet101")
        doublings = math.log2(record.batch_size / 16)
        at_once = sudden == "all" or (sudden == "large") == large
        return 0.9 - (0.08 * (doublings > 2) if at_once else 0.02 * doublings) - 0.0001 * doublings

    return level


def _batch_norm(by_groups: float) -> Make:
    """The small batch loses 4 points, the share `by_groups` of them through BatchNorm."""

    def make(rng: np.random.Generator, seeds: int) -> list[RunRecord]:
        alone = make_records(rng, lambda t: 0.9 - 0.04 * (t.batch_size == 8), seeds=seeds, batch_size=[8, 64])
        grouped: dict[str, Any] = {"study": ["grouped"], "batch_size": [64], "bn_group": [8]}
        return alone + make_records(rng, lambda t: 0.9 - 0.04 * by_groups, seeds=seeds, **grouped)

    return make


def _decay(gain: float) -> Level:
    return lambda t: 0.9 + (t.arm == "filtered") * gain * (0.01 - t.weight_decay) / 0.01


def _augmented(made_up_for: float) -> Level:
    return lambda t: 0.8 + 0.1 * t.augmented - (t.arm != "full") * (0.02 - made_up_for * t.augmented)


def _extractors(best: Mapping[str, float]) -> Level:
    return lambda t: 0.9 + (t.arm == "filtered") * best.get(t.extractor, 0.0)


def _moving_peak(moves: float) -> Level:
    """The best batch size, 64 at rate 0.1, grows by `moves` doublings with each of the rate."""
    return lambda t: _peak(t, 6 + moves * math.log2(t.learning_rate / 0.1), 0.8)


def _noise(power: float) -> Level:
    return lambda t: 0.001 * (t.batch_size / 16) ** power


def _gain(gain: float) -> Level:
    return lambda t: 0.9 + gain * (t.arm == "filtered")


def _gain_by_batch(against_full: float, against_random: float) -> Level:
    """What filtered gains on both arms grows by so much with each doubling of the batch size."""

    def level(record: RunRecord) -> float:
        doublings = math.log2(record.batch_size / 16)
        growth = {"filtered": 0.0, "full": against_full, "random": against_random}[record.arm]
        return 0.9 - 0.01 * doublings - growth * doublings

    return level


_ARMS = ["full", "filtered", "random"]

CASES: Mapping[str, ClaimCase] = {
    "gain_by_batch": ClaimCase(
        *(grid(_gain_by_batch(*growths), arm=_ARMS, batch_size=_SIZES)
          for growths in ((0.005, 0.005), (0.005, -0.005), (0.005, 0.0)))
    ),
    "best_batch": ClaimCase(
        *(grid(_moving_peak(moves), batch_size=_SIZES, learning_rate=_RATES) for moves in (1, 0, 0))
    ),
    "parting_curves": ClaimCase(
        *(grid(_curves_by_rate(*parts), noise=0.002, batch_size=_SIZES, learning_rate=_RATES, model=_NETS)
          for parts in ((0.01, (0, 1)), (-0.004, (1, 0)), (0.01, (0.5, 0.5))))
    ),
    "sudden_drop": ClaimCase(
        *(grid(_drops(kind), batch_size=_SIZES, model=_NETS) for kind in ("large", "small", "all"))
    ),
    "batch_norm": ClaimCase(_batch_norm(1.0), _batch_norm(0.0), _batch_norm(0.5)),
    "weight_decay": ClaimCase(
        *(grid(_decay(gain), arm=["full", "filtered", "random"], weight_decay=[0.005, 0.01, 0.0135])
          for gain in (0.03, -0.03, 0.0))
    ),
    "variance": ClaimCase(*(grid(lambda t: 0.9, noise=_noise(power), batch_size=_SIZES) for power in (1, -1, 0))),
    "augmentation": ClaimCase(
        *(grid(_augmented(gain), arm=["full", "random"], augmented=[False, True], batch_size=[64, 128])
          for gain in (0.02, -0.02, 0.0))
    ),
    "as_good_as_full": ClaimCase(
        *(grid(_gain(gain), matched=["epochs"], batch_size=[64, 128], arm=["full", "filtered"])
          for gain in (0.01, -0.02, -CRITERIA.margin))
    ),
    "best_extractor": ClaimCase(
        *(grid(_extractors(best), arm=["filtered", "random"], extractor=["resnet18", "resnet50", "resnet101"])
          for best in ({"resnet101": 0.02}, {"resnet18": 0.03}, {"resnet101": 0.01, "resnet50": 0.01}))
    ),
}  # fmt: skip


def test_every_claim_has_its_scenarios() -> None:
    assert CASES.keys() == CLAIMS.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_true_claim_is_supported_and_a_false_one_contradicted(name: str) -> None:
    assert claims(name, CASES[name].true, 20)[0] >= 0.8
    assert claims(name, CASES[name].false, 20)[1] >= 0.8


def _counted(make: Make, images: int = 360) -> Make:
    """Round accuracies to counts of few test images."""

    def made(rng: np.random.Generator, seeds: int) -> list[RunRecord]:
        return [changed(t, n_images=images, top1=round(t.top1 * images) / images) for t in make(rng, seeds)]

    return made


def _diverging(make: Make) -> Make:
    """Remove the largest batch size, or one arm or weight decay, of all seeds but the first."""

    def made(rng: np.random.Generator, seeds: int) -> list[RunRecord]:
        records = make(rng, seeds)
        last = max(map(key, records))
        return [t for t in records if t.seed == 0 or key(t) != last]

    key = attrgetter("batch_size", "learning_rate", "weight_decay", "arm")
    return made


SCENARIOS: Mapping[str, Callable[[Make], Make]] = {
    "as they are": lambda make: make,
    "few test images": _counted,
    "some diverged": _diverging,
}


def _wrong(name: str, scenario: str, seeds: int, simulations: int) -> float:
    """Return the share of simulations on the border with a wrong claim."""
    supported, contradicted = claims(name, SCENARIOS[scenario](CASES[name].border), simulations, seeds)
    # If the best batch size does not depend on the rate, contradicting the claim is right.
    return supported if name == "best_batch" else supported + contradicted


@pytest.mark.parametrize("name", CASES)
def test_on_the_border_claims_are_as_rare_as_stated(name: str) -> None:
    assert _wrong(name, "as they are", 4, SIMULATIONS) <= hardly_above(CRITERIA.alpha, SIMULATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 6])
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", CASES)
def test_claims_are_as_rare_as_stated_at_every_scenarios_border(name: str, scenario: str, seeds: int) -> None:
    assert _wrong(name, scenario, seeds, MANY) <= hardly_above(CRITERIA.alpha, MANY)


@pytest.mark.parametrize("name", CASES)
def test_a_single_seed_tests_nothing(name: str) -> None:
    assert CLAIMS[name].evaluate(CASES[name].true(np.random.default_rng(0), 1), CRITERIA) is None


@pytest.mark.parametrize("name", CASES)
def test_neither_order_nor_foreign_studies_change_anything(name: str) -> None:
    """Runs of another network, for example, are not part of any comparison."""
    rng = np.random.default_rng(1)
    records = CASES[name].true(rng, 5)
    alone = [replace(records[0], study="alone", model="small_cnn", arm="random_uniform", seed=99)]
    shuffled = [records[int(row)] for row in rng.permutation(len(records))]
    evidence, again = CLAIMS[name].evaluate(records, CRITERIA), CLAIMS[name].evaluate(alone + shuffled, CRITERIA)
    assert evidence is not None
    assert again is not None
    assert (evidence.n, evidence.settings) == (again.n, again.settings)
    np.testing.assert_allclose([evidence.p_for, evidence.mean], [again.p_for, again.mean])


def test_all_claims_together_err_no_more_often_than_one() -> None:
    """All on the border at once, each in a separate study."""
    rng, wrong = np.random.default_rng(2), []
    for _ in range(100):
        records = []
        for name in ("variance", "weight_decay", "augmentation", "as_good_as_full"):
            records += [replace(record, study=f"{name}-{record.study}") for record in CASES[name].border(rng, 6)]
        wrong.append(
            any(result.outcome in ("supported", "contradicted") for result in evaluate_claims(records, CRITERIA))
        )
    assert np.mean(wrong) <= hardly_above(CRITERIA.alpha, 100)


def test_without_runs_nothing_is_testable_and_holm_counts_what_is() -> None:
    assert {result.outcome for result in evaluate_claims([], CRITERIA)} == {"not testable here"}
    records = CASES["variance"].true(np.random.default_rng(0), 6)
    (tested,) = [result for result in evaluate_claims(records, CRITERIA) if result.evidence]
    assert tested.evidence is not None
    assert (tested.name, tested.p, tested.outcome) == ("variance", tested.evidence.p, "supported")


@pytest.mark.parametrize("part", [6, 4])
@pytest.mark.parametrize("name", CASES)
def test_runs_that_studies_share_count_once(name: str, part: int) -> None:
    """Another study with all or some of the seeds adds neither weight nor settings."""
    records = CASES[name].border(np.random.default_rng(4), 6)
    copies = [replace(record, study=f"again {record.study}") for record in records if record.seed < part]
    once, twice = CLAIMS[name].evaluate(records, CRITERIA), CLAIMS[name].evaluate(records + copies, CRITERIA)
    assert once is not None
    assert once == twice


def test_runs_that_two_studies_share_have_no_double_weight() -> None:
    """As if both take the same steps at one batch size and not at the other."""
    rng = np.random.default_rng(6)
    axes: dict[str, Any] = {"arm": ["full", "filtered"], "weight_decay": [0.005, 0.01]}
    records = make_records(rng, _decay(0.01), batch_size=[64, 128], **axes)
    shared = [replace(record, study="epochs", matched="epochs") for record in records if record.batch_size == 128]
    own = make_records(rng, _decay(0.01), study=["epochs"], matched=["epochs"], batch_size=[64], **axes)
    evidence = CLAIMS["weight_decay"].evaluate(records + shared + own, CRITERIA)
    assert evidence is not None
    assert evidence == CLAIMS["weight_decay"].evaluate(records + own, CRITERIA)
    assert evidence.settings == 3


def test_steps_too_few_for_equal_epochs_are_no_evidence_of_them() -> None:
    """Three steps of 6,272 are 1.88 epochs of 10,000 images and 1.98 of 9,488."""
    epochs = {(6272, "full"): 1.88, (6272, "filtered"): 1.98}
    records = [
        replace(record, epochs=epochs.get((record.batch_size, record.arm), 1.5))
        for record in make_records(
            np.random.default_rng(6), _gain(0.01), matched=["epochs"], batch_size=[256, 6272], arm=["full", "filtered"]
        )
    ]
    evidence = CLAIMS["as_good_as_full"].evaluate(records, CRITERIA)
    assert evidence == CLAIMS["as_good_as_full"].evaluate(
        [record for record in records if record.batch_size == 256], CRITERIA
    )


def test_a_study_of_fewer_draws_is_left_out() -> None:
    rng = np.random.default_rng(5)
    several = make_records(rng, _gain(0.01), matched=["epochs"], arm=["full", "filtered"], draw=[0, 1])
    one = make_records(rng, _gain(0.01), study=["other"], matched=["epochs"], arm=["full", "filtered"])
    evidence = CLAIMS["as_good_as_full"].evaluate(several + one, CRITERIA)
    assert evidence is not None
    assert (evidence.n, evidence.unit, evidence.settings, evidence.left_out) == (2, "replicate of the filter", 1, 1)


def test_with_several_draws_of_the_filter_the_draws_count() -> None:
    """One draw's luck is in all of its seeds."""
    rng = np.random.default_rng(3)
    records: list[RunRecord] = []
    for draw in range(3):
        luck = rng.normal(0, 0.05)
        arms = ["full", "filtered"] if draw == 0 else ["filtered"]
        records += make_records(rng, _gain(luck), seeds=20, noise=1e-4, matched=["epochs"], arm=arms, draw=[draw])
    evidence = CLAIMS["as_good_as_full"].evaluate(records, CRITERIA)
    assert evidence is not None
    assert (evidence.n, evidence.unit) == (3, "replicate of the filter")
    assert evidence.high - evidence.low > 1
