"""A ratio of the treated arm to another as a sentence."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.stats.pairs import TREATED
from pipeline.stats.verdict_wording import CONDITIONAL, replicates
from pipeline.stats.wording import number, p_value, plural


def ratio_sentence(
    ratio: Mapping[str, Any], alpha: float, *, what: str, unit: str, words: Mapping[str, str], left_out: str
) -> str:
    """What was found, and what it rests on.

    Args:
        ratio: as `pipeline.stats.ratios.Ratio`, in plain values.
        alpha: level of its tests.
        what: is compared, e.g. `in the top eigenvalue`.
        unit: after the number, e.g. `times as many steps`.
        words: for the outcomes lower and higher.
        left_out: says which settings are missing; shown where some are.
    """
    head = f"{TREATED} against {ratio['control'].replace('_', ' ')} {what}"
    if ratio["mean"] is None:
        return f"{head}: nothing to compare ({left_out})."
    parts = [*_parts(ratio, alpha, unit), *([left_out] if ratio["left_out"] else [])]
    return f"{head}: {words.get(ratio['outcome'], ratio['outcome'])} ({'; '.join(parts)})."


def unadjusted_sentence(found: Iterable[Mapping[str, Any]]) -> str:
    """That the tests of these ratios are read side by side; empty where there is one at most."""
    tests = sum(ratio["p"] is not None for ratio in found)
    return f"These {plural(tests, 'test')} are not adjusted for their number." if tests > 1 else ""


def _parts(ratio: Mapping[str, Any], alpha: float, unit: str) -> Iterator[str]:
    yield f"{ratio['mean']:.2f} {unit}"
    if ratio["low"] is None:
        yield "no interval"
    else:
        yield f"{100 * (1 - alpha):g} % interval {ratio['low']:.2f} to {ratio['high']:.2f}"
    yield replicates(ratio["n"], ratio["unit"], seeds=ratio["seeds"], settings=len(ratio["settings"]))
    if ratio["p"] is not None:
        yield f"p = {p_value(ratio['p'])}"
        if ratio["least_p"] > alpha:
            yield f"too few to claim a difference: the sign-flip test gives {number(ratio['least_p'])} at best"
    if ratio["draws"] == 1:
        yield CONDITIONAL
