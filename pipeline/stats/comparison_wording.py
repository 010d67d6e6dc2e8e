"""Sentences on a comparison of two arms: its verdict, what its seeds can find, and what they cannot."""

from pipeline.stats.comparisons import POWER, Comparison, replicates_needed
from pipeline.stats.pairs import TREATED
from pipeline.stats.verdict import Verdict
from pipeline.stats.verdict_wording import Matched, arms_compared, verdict_headline, verdict_sentence
from pipeline.stats.wording import count, number, plural, spread


def comparison_headline(comparison: Comparison, matched: Matched) -> str:
    """What a study says of one comparison, in a line."""
    if comparison.pooled is None:
        return f"{arms_compared(TREATED, comparison.control, matched)}: nothing to compare"
    return verdict_headline(comparison.pooled, treated=TREATED, control=comparison.control, matched=matched)


def comparison_sentence(comparison: Comparison, matched: Matched) -> str:
    """The same with its certainty and what it leaves out."""
    if comparison.pooled is None:
        head = comparison_headline(comparison, matched)
        return f"{head}, since in no setting all seeds of both arms finished."
    left_out = comparison.left_out
    return verdict_sentence(
        comparison.pooled, treated=TREATED, control=comparison.control, matched=matched, left_out=left_out
    )


def needed_sentence(comparison: Comparison) -> str:
    """How many seeds would have been enough; empty where the spread is not known."""
    verdict, needed = comparison.pooled, replicates_needed(comparison)
    if verdict is None or needed is None:
        return ""
    margin, sd = f"±{100 * verdict.rule.margin:.2f} percentage points", spread(verdict.estimate.sd, scale=100)
    return (
        f"A difference of {margin}, at the spread found (sd {sd} between {verdict.unit}s), is found "
        f"with a chance of {POWER:g} by {plural(needed.n, verdict.unit)} or more ({count(needed.low)} to "
        f"{count(needed.high)} within the uncertainty of that spread); the study has {verdict.estimate.n}."
    )


def settings_note(comparison: Comparison) -> str:
    """Why no single setting can be said to help or hurt; empty where one can."""
    tested = [verdict for verdict in comparison.by_setting if verdict and verdict.tests]
    if not tested:
        return "Single settings have no test: each has one pair of runs at most." if comparison.by_setting else ""
    short = [verdict for verdict in tested if verdict.too_few_pairs]
    if not short:
        return ""
    which = "any setting" if len(short) == len(tested) else f"{len(short)} of {plural(len(tested), 'setting')}"
    return f"Too few to claim a difference at {which}: {_at_best(short[0])}"


def _at_best(verdict: Verdict) -> str:
    assert verdict.tests is not None
    pairs, least, alpha = verdict.tests.pairs, verdict.tests.smallest_difference, verdict.levels.difference
    after = f", after Holm for {verdict.comparisons} settings," if verdict.comparisons > 1 else ""
    what = verdict.unit if pairs == verdict.estimate.n else "seed"
    return (
        f"with {plural(pairs, what)} the sign-flip test gives p = {number(least)} at best{after} "
        f"and can reach {number(alpha)} from {verdict.pairs_needed} on."
    )
