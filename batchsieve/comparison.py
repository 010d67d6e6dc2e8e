"""`compare_runs`: compare the accuracies of two sets of runs by paired tests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from batchsieve.arrays import as_array, checked_number
from pipeline.errors import InputError
from pipeline.stats.estimates import decimal_step
from pipeline.stats.formatting import finding
from pipeline.stats.verdict import DecisionRule, Outcome, pooled_verdict

Accuracies = ArrayLike | Mapping[Any, float]

_LEAST_ALPHA = 1e-9


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """The verdict of `compare_runs`. Differences are a - b, of accuracies from 0 to 1.

    Attributes:
        outcome: `equivalent` if the difference is smaller than the margin; else `helps` or `hurts` if a is better or
            worse beyond chance; else `undecided`.
        estimate: mean difference.
        interval: ends of the confidence interval by Student's t; None with one pair.
        p_value: of no difference: the larger one of the paired t test and the sign-flip test; None with one pair.
        p_equivalence: of a difference of the margin or more (two one-sided tests); None with one pair.
        n: number of pairs.
        margin, confidence: the arguments of `compare_runs`.
        sentence: the verdict in one sentence.
    """

    outcome: Outcome
    estimate: float
    interval: tuple[float, float] | None
    p_value: float | None
    p_equivalence: float | None
    n: int
    margin: float
    confidence: float
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def compare_runs(
    a: Accuracies,
    b: Accuracies,
    *,
    margin: float,
    confidence: float = 0.95,
    n_test: int | None = None,
    names: tuple[str, str] = ("a", "b"),
) -> RunComparison:
    """Compare the accuracies of paired runs, e.g. of the same seeds with and without a filter.

    A difference needs significance in both the paired t test and the exact sign-flip test. The latter is impossible
    with fewer than 6 pairs at a confidence of 0.95. State the margin before you see the runs.

    Args:
        a: accuracies from 0 to 1 of the first runs: an array (n,), or a mapping of seed to accuracy.
        b: accuracies of the runs to compare with. Arrays are paired by position, mappings by seed; both have the same
            seeds.
        margin: smaller differences of accuracy do not matter; above 0 and below 1, e.g. 0.005 for half a percentage
            point.
        confidence: of the interval, 0.5 to 1; each test has the level 1 - confidence.
        n_test: number of test samples, if known. The tests count rounding: to multiples of 1 / n_test, or to the
            decimals of the accuracies if these are coarser.
        names: of a and b in the sentence.

    Returns:
        The verdict on a - b.

    Raises:
        InputError: naming the argument, the value and the fix: different lengths or seeds, no pairs, values that are
            not finite or outside 0 to 1, a margin or confidence out of range.

    Example:
        >>> from batchsieve import compare_runs
        >>> filtered = {0: 0.952, 1: 0.949, 2: 0.951, 3: 0.953, 4: 0.950, 5: 0.951, 6: 0.949}
        >>> full = {0: 0.941, 1: 0.940, 2: 0.939, 3: 0.944, 4: 0.938, 5: 0.941, 6: 0.940}
        >>> verdict = compare_runs(filtered, full, margin=0.002)
        >>> verdict.outcome, round(verdict.estimate, 4), verdict.n
        ('helps', 0.0103, 7)
        >>> print(verdict)
        a against b: helps, +1.03 percentage points of top-1 (...).
        >>> compare_runs([0.91, 0.90], [0.90, 0.91], margin=0.002).outcome
        'undecided'
    """
    margin, confidence = checked_number(margin, "margin"), checked_number(confidence, "confidence")
    if not 0 < margin < 1:
        raise InputError(f"margin: {margin}; give a difference of accuracy above 0 and below 1, e.g. 0.005")
    if not 0.5 < confidence < 1 - _LEAST_ALPHA:
        raise InputError(f"confidence: {confidence}; give one above 0.5 and below 1, e.g. 0.95")
    if n_test is not None and not 1 <= n_test < math.inf:
        raise InputError(f"n_test: {n_test}; give the number of test samples, or leave it out")
    if isinstance(names, str) or len(names) != 2:
        raise InputError(f"names: {names!r}; give the name of a and that of b")
    treated, control = _pairs(a, b)
    # Sorted, so that the result, including random sign flips, does not depend on the order of the pairs.
    differences = np.sort(treated - control)
    rule = DecisionRule(margin=margin, alpha=round(1 - confidence, 12))
    step = max(_decimal_step(a), _decimal_step(b), 1 / n_test if n_test else 0.0)
    verdict = pooled_verdict(differences[None, :, None], rule, step=step)
    estimate, tests = verdict.estimate, verdict.tests
    return RunComparison(
        outcome=verdict.outcome,
        estimate=estimate.mean,
        interval=None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high),
        p_value=tests.adjusted_difference if tests else None,
        p_equivalence=tests.adjusted_equivalence if tests else None,
        n=len(differences),
        margin=margin,
        confidence=confidence,
        sentence=f"{names[0]} against {names[1]}: {finding(verdict, of_a_filter=False)}.",
    )


def _decimal_step(accuracies: Accuracies) -> float:
    values = list(accuracies.values()) if isinstance(accuracies, Mapping) else accuracies
    return decimal_step(as_array(values, "accuracies"))


def _pairs(a: Accuracies, b: Accuracies) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the accuracies of a and b as two arrays (n,) in the same order.

    Raises:
        InputError: naming `a` or `b`.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key, runs, others in (("a", a, b), ("b", b, a)):
            if missing := [seed for seed in others if seed not in runs]:
                raise InputError(f"{key}: lacks the run {missing[0]!r} of the other; give both the same seeds")
        return _checked("a", list(a.values())), _checked("b", [b[seed] for seed in a])
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        raise InputError("a, b: one is a mapping and one is not; give two mappings of seed to accuracy, or two arrays")
    treated, control = _checked("a", a), _checked("b", b)
    if len(treated) != len(control):
        raise InputError(f"b: {len(control)} runs against {len(treated)} of a; give pairs, in the same order")
    return treated, control


def _checked(key: str, accuracies: ArrayLike) -> NDArray[np.float64]:
    values = as_array(accuracies, key)
    if values.ndim != 1 or len(values) == 0 or values.dtype.kind not in "fiu":
        raise InputError(f"{key}: {values.dtype} of shape {values.shape}; give accuracies (n,), n of 1 or more")
    values = values.astype(np.float64)
    outside = ~((values >= 0) & (values <= 1))
    if outside.any():
        row = int(outside.argmax())
        raise InputError(f"{key}: run {row} has {values[row]}; give accuracies as shares from 0 to 1")
    return values
