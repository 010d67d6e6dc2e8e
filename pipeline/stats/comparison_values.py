"""Comparisons as plain values: differences in percentage points of top-1, p-values as they are."""

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.stats.comparison_wording import comparison_headline, comparison_sentence, needed_sentence, settings_note
from pipeline.stats.comparisons import POWER, Comparison, Plan, replicates_needed
from pipeline.stats.estimates import Estimate
from pipeline.stats.runs import Setting
from pipeline.stats.verdict import Verdict

Values = dict[str, Any]


def pooled_values(comparison: Comparison, plan: Plan) -> Values:
    """One comparison over the settings of a study, with its sentences."""
    verdict = comparison.pooled
    needed = replicates_needed(comparison)
    return {
        "control": comparison.control,
        "primary": comparison.primary,
        "headline": comparison_headline(comparison, plan.matched),
        "sentence": comparison_sentence(comparison, plan.matched),
        "estimate": in_points(verdict.estimate) if verdict else None,
        "verdict": verdict_values(verdict) if verdict else None,
        "settings": verdict.settings if verdict else 0,
        "left_out": comparison.left_out,
        "needed": {**needed._asdict(), "power": POWER} if needed else None,
        "needed_sentence": needed_sentence(comparison),
        "settings_note": settings_note(comparison),
    }


def setting_values(comparison: Comparison, named: Callable[[Setting], Values]) -> Sequence[Values]:
    """The same for each setting; `named` says what the setting is called."""
    return [
        {
            **named(setting),
            "setting": setting._asdict(),
            "control": comparison.control,
            "estimate": in_points(verdict.estimate) if verdict else None,
            "verdict": verdict_values(verdict) if verdict else None,
        }
        for setting, verdict in zip(comparison.settings, comparison.by_setting, strict=True)
    ]


def verdict_values(verdict: Verdict) -> Values:
    """The outcome with its tests; `p` is None with a single replicate."""
    tests = verdict.tests
    return {
        "outcome": verdict.outcome,
        "unit": verdict.unit,
        "draws": verdict.draws,
        "seeds": verdict.seeds,
        "comparisons": verdict.comparisons,
        "pairs_needed": verdict.pairs_needed,
        "too_few_pairs": verdict.too_few_pairs,
        "looks": _looks(verdict),
        "p": tests
        and {
            "t": tests.t,
            "sign_flip": tests.sign_flip,
            "equivalence": tests.equivalence,
            "adjusted_difference": tests.adjusted_difference,
            "adjusted_equivalence": tests.adjusted_equivalence,
        },
        "equivalence_low": tests and 100 * tests.equivalence_low,
        "equivalence_high": tests and 100 * tests.equivalence_high,
    }


def _looks(verdict: Verdict) -> Values | None:
    """Numbers of seeds stated, the one of this verdict (0 before the first look), the levels of a look, and how many
    seeds were trained beyond it; None without looks."""
    stated = verdict.rule.looks
    if not stated:
        return None
    taken = verdict.seeds if verdict.seeds >= stated[0] else 0
    return {"stated": list(stated), "taken": taken, **verdict.levels._asdict(), "unused": verdict.unused}


def in_points(estimate: Estimate) -> Values:
    """An estimate of accuracies, 0 to 1, in percentage points."""
    scaled = {name: getattr(estimate, name) for name in ("mean", "sd", "low", "high")}
    return {"n": estimate.n, **{name: None if value is None else 100 * value for name, value in scaled.items()}}
