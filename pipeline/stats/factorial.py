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
        low, high: value of the first of `keys` at each level. The first experiment has the low one.
        signs: (N,), -1 where an experiment has the low level and +1 where it has the high one.
    """

    keys: tuple[str, ...]
    low: str
    high: str
    signs: tuple[int, ...]

    @property
    def name(self) -> str:
        """The first key, with the number of the others."""
        more = len(self.keys) - 1
        return self.keys[0] + (f" (and {more} more {'key' if more == 1 else 'keys'})" if more else "")


def find_factors(experiments: Sequence[Mapping[str, str]]) -> list[Factor]:
    """Return the factors of experiments, in the order of their first key.

    Args:
        experiments: of each the settings and their values as text; a setting that it lacks counts as a value, too.

    Raises:
        ValueError: a setting has three values or more; the message names it.
    """
    # Of settings that change together the name of a variant says most, as `optimizer.name` or `lr_scaling.rule` does.
    names = sorted(
        {name for settings in experiments for name in settings},
        key=lambda name: (not name.endswith((".name", ".rule")), name.count("."), name),
    )
    keys: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        values = list(dict.fromkeys(settings.get(name, "") for settings in experiments))
        if len(values) > 2:
            raise ValueError(f"{name} has {len(values)} values, {', '.join(value or 'none' for value in values)}")
        if len(values) == 2:
            signs = tuple(2 * values.index(settings.get(name, "")) - 1 for settings in experiments)
            keys.setdefault(signs, []).append(name)
    return [_factor(signs, names, experiments) for signs, names in keys.items()]


def _factor(signs: tuple[int, ...], names: Sequence[str], experiments: Sequence[Mapping[str, str]]) -> Factor:
    low, high = (experiments[signs.index(sign)].get(names[0], "") or "none" for sign in (-1, 1))
    return Factor(keys=tuple(names), low=low, high=high, signs=signs)


def design_problem(factors: Sequence[Factor]) -> str | None:
    """Return why effects are mixed: a factor or a pair of factors that is not balanced; None if they are not."""
    for factor in factors:
        if sum(factor.signs):
            low = factor.signs.count(-1)
            return f"{factor.name} is {factor.low} {low} times and {factor.high} {len(factor.signs) - low} times"
    for one, other in itertools.combinations(factors, 2):
        if np.dot(one.signs, other.signs):
            return f"{one.name} and {other.name} do not have all four combinations equally often"
    return None


def aliased_interactions(factors: Sequence[Factor]) -> list[list[tuple[int, int]]]:
    """Return for each factor the pairs of other factors whose interaction equals its main effect."""
    signs = np.array([factor.signs for factor in factors])
    pairs = list(itertools.combinations(range(len(factors)), 2))
    return [
        [(i, j) for i, j in pairs if k not in (i, j) and abs(np.dot(signs[i] * signs[j], signs[k])) == signs.shape[1]]
        for k in range(len(factors))
    ]


def main_effects(values: ArrayLike, signs: ArrayLike) -> StudentMean:
    """Return the mean at the high level minus the mean at the low level of each of k factors.

    A seed is a block: what it adds to all experiments cancels. The error is pooled over all experiments, which
    assumes that they vary equally between seeds; it has (S - 1) (N - 1) degrees of freedom.

    Args:
        values: (S, N), of N experiments with S seeds each, S and N >= 2.
        signs: (k, N), -1 and 1, of a design without a `design_problem`.
    """
    table, levels = np.asarray(values, dtype=np.float64), np.asarray(signs, dtype=np.float64)
    n_seeds, n_experiments = table.shape
    assert min(table.shape) > 1, table.shape
    means = table.mean(axis=0)
    residuals: NDArray[np.float64] = table - means - table.mean(axis=1, keepdims=True) + table.mean()
    dof = (n_seeds - 1) * (n_experiments - 1)
    error = 2 * np.sqrt(np.sum(residuals**2) / dof / table.size)
    effects = 2 / n_experiments * levels @ means
    return StudentMean(mean=effects, error=np.full(effects.shape, error), dof=np.full(effects.shape, float(dof)))
