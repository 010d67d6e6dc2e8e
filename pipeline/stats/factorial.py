"""Main effects of two-level factorial experiments: full ones, and fractions whose factors are balanced.

Source: Box, Hunter and Hunter (2005), Statistics for Experimenters, chapters 5 and 6.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import StudentMean


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A choice with two levels.

    Attributes:
        keys: the settings that change together; first the name of a variant, if there is one.
        low, high: value of the first of `keys` at each level. The first study has the low one.
        signs: (N,), -1 where a study has the low level and +1 where it has the high one.
    """

    keys: tuple[str, ...]
    low: str
    high: str
    signs: tuple[int, ...]


def find_factors(studies: Sequence[Mapping[str, str]]) -> list[Factor]:
    """Return the factors of studies, in the order of their first key.

    Args:
        studies: of each the settings and their values as text; a setting that it lacks counts as a value, too.

    Raises:
        ValueError: a setting has three values or more; the message names it.
    """
    # Of settings that change together the name of a variant says most, as `optimizer.name` or `lr_scaling.rule` does.
    names = sorted(
        {name for settings in studies for name in settings},
        key=lambda name: (not name.endswith((".name", ".rule")), name.count("."), name),
    )
    keys: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        values = list(dict.fromkeys(settings.get(name, "") for settings in studies))
        if len(values) > 2:
            raise ValueError(f"{name} has {len(values)} values, {', '.join(value or 'none' for value in values)}")
        if len(values) == 2:
            signs = tuple(2 * values.index(settings.get(name, "")) - 1 for settings in studies)
            keys.setdefault(signs, []).append(name)
    return [_factor(signs, names, studies) for signs, names in keys.items()]


def _factor(signs: tuple[int, ...], names: Sequence[str], studies: Sequence[Mapping[str, str]]) -> Factor:
    low, high = (studies[signs.index(sign)].get(names[0], "") or "none" for sign in (-1, 1))
    return Factor(keys=tuple(names), low=low, high=high, signs=signs)


def design_problem(factors: Sequence[Factor]) -> str | None:
    """Return why these factors are no full factorial or regular fraction, or are not balanced; None if they are."""
    if not factors:
        return "no setting differs"
    for factor in factors:
        if sum(factor.signs):
            low = factor.signs.count(-1)
            return f"{factor.keys[0]} is {factor.low} {low} times and {factor.high} {len(factor.signs) - low} times"
    for one, other in itertools.combinations(factors, 2):
        if np.dot(one.signs, other.signs):
            return f"{one.keys[0]} and {other.keys[0]} do not have all four combinations equally often"
    signs = np.array([factor.signs for factor in factors])
    for i, j, k in itertools.combinations(range(len(factors)), 3):
        if 0 < abs(np.dot(signs[i] * signs[j], signs[k])) < signs.shape[1]:
            names = ", ".join(factors[number].keys[0] for number in (i, j, k))
            return f"of {names} each is mixed with a part of the interaction of the others"
    return None


def aliased_interactions(factors: Sequence[Factor]) -> list[list[tuple[int, int]]]:
    """Return for each factor the pairs of other factors whose interaction its main effect is mixed with."""
    signs = np.array([factor.signs for factor in factors])
    pairs = list(itertools.combinations(range(len(factors)), 2))
    return [
        [(i, j) for i, j in pairs if k not in (i, j) and abs(np.dot(signs[i] * signs[j], signs[k])) == signs.shape[1]]
        for k in range(len(factors))
    ]


def main_effects(values: ArrayLike, signs: ArrayLike) -> StudentMean:
    """Return the mean at the high level minus the mean at the low level of each of k factors.

    A seed is a block: what it adds to all studies cancels. The error is pooled over all studies, which assumes that
    they vary equally between seeds; it has (S - 1) (N - 1) degrees of freedom.

    Args:
        values: (S, N), of N studies with S seeds each, S and N >= 2.
        signs: (k, N), -1 and 1, of a design without a `design_problem`.
    """
    table, levels = np.asarray(values, dtype=np.float64), np.asarray(signs, dtype=np.float64)
    n_seeds, n_studies = table.shape
    assert min(table.shape) > 1, table.shape
    means = table.mean(axis=0)
    residuals: NDArray[np.float64] = table - means - table.mean(axis=1, keepdims=True) + table.mean()
    dof = (n_seeds - 1) * (n_studies - 1)
    error = 2 * np.sqrt(np.sum(residuals**2) / dof / table.size)
    effects = 2 / n_studies * levels @ means
    return StudentMean(mean=effects, error=np.full(effects.shape, error), dof=np.full(effects.shape, float(dof)))
