"""A ratio of the treated arm to another as a sentence."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.stats.pairs import TREATED
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


def _parts(ratio: Mapping[str, Any], alpha: float, unit: str) -> Iterator[str]:
    yield f"{ratio['mean']:.2f} {unit}"
    if ratio["low"] is None:
        yield "no interval"
    else:
        yield f"{100 * (1 - alpha):g} % interval {ratio['low']:.2f} to {ratio['high']:.2f}"
    over = f", each over {plural(len(ratio['settings']), 'setting')}" if len(ratio["settings"]) > 1 else ""
    yield f"n = {ratio['n']}{over}"
    if ratio["p"] is not None:
        yield f"p = {p_value(ratio['p'])}"
        if ratio["least_p"] > alpha:
            yield f"too few to claim a difference: the sign-flip test gives {number(ratio['least_p'])} at best"
