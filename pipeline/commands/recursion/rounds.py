"""Filter, train the extractor on what is left, filter again: when it ends, and what came of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.stability import jaccard


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What one round's filter says of all N training images, in the order of their sample_id.

    Attributes:
        is_noise: (N,) the filter's own decision.
        keep: (N,) after people's overrides.
        top1: of the round's extractor on the test images, 0 to 1.
    """

    is_noise: NDArray[np.bool_]
    keep: NDArray[np.bool_]
    top1: float


def iterate(
    first: Verdict,
    next_round: Callable[[int, NDArray[np.bool_]], Verdict],
    *,
    rounds: int,
    settle_at: float,
) -> list[Verdict]:
    """The technique used recursively (Gahlot et al. 2020, future work).

    Args:
        first: round 0.
        next_round: from a round's number, 1 or more, and what the round before it keeps (N,) to its verdict.
        rounds: the most to run, 1 or more.
        settle_at: ends as soon as two rounds in a row reach this Jaccard index of what is noise.

    Returns:
        The verdicts of rounds 0 to R, 1 <= R <= `rounds`.
    """
    assert rounds >= 1, rounds
    verdicts = [first]
    while len(verdicts) <= rounds and not has_settled(verdicts, settle_at):
        verdicts.append(next_round(len(verdicts), verdicts[-1].keep))
    return verdicts


def has_settled(verdicts: Sequence[Verdict], settle_at: float) -> bool:
    """Whether the last two rounds agree on what is noise."""
    return len(verdicts) > 1 and jaccard(verdicts[-2].is_noise, verdicts[-1].is_noise) >= settle_at


def compare(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """One row a round, as rounds.json has it; round 0 has no round before it to be compared with."""
    alone = {"jaccard": None, "n_back": None, "n_newly_dropped": None}
    rows = [{"round": 0, **_counts(verdicts[0]), **alone}]
    for number, (before, now) in enumerate(pairwise(verdicts), start=1):
        against = {
            "jaccard": jaccard(before.is_noise, now.is_noise),
            "n_back": int((now.keep & ~before.keep).sum()),
            "n_newly_dropped": int((before.keep & ~now.keep).sum()),
        }
        rows.append({"round": number, **_counts(now), **against})
    return rows


def _counts(verdict: Verdict) -> dict[str, Any]:
    n_kept = int(verdict.keep.sum())
    return {
        "n_kept": n_kept,
        "n_noise": int(verdict.is_noise.sum()),
        "n_dropped": len(verdict.keep) - n_kept,
        "top1": verdict.top1,
    }
