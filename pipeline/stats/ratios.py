"""How many times a positive quantity of the treated arm is that of another, paired by seed, on a logarithmic scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.estimates import Estimate
from pipeline.stats.levels import level_estimate, level_mean, level_sign_flip, n_pairs
from pipeline.stats.pairs import controls_of, draws_of, find_pairs, seeds_of
from pipeline.stats.runs import Run, Setting
from pipeline.stats.sign_flip import smallest_p

RatioOutcome = Literal["lower", "higher", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Treated over control.

    Attributes:
        control: the arm that the treated one is compared with.
        outcome: of the treated arm; undecided unless both tests find a difference at alpha.
        mean, low, high: geometric mean of the ratio with its t interval of confidence 1 - alpha on the logarithmic
            scale; above 0, the ends None with a single replicate. All None where no setting is complete.
        n: how many of `unit`; 0 where no setting is complete.
        unit: what n counts: seeds of the only draw of the filter (the outcome is conditional on that draw), or draws.
        draws, seeds: that the ratio is of; seeds of each draw.
        p: the larger of those of the t test and of the sign-flip test; None with a single replicate.
        least_p: that the sign-flip test gives with so many replicates at best; above alpha nothing can be claimed.
        settings: that the ratio is over, each seed's logarithms averaged first.
        left_out: settings in which some run of either arm did not finish, or has no value.
    """

    control: str
    outcome: RatioOutcome
    mean: float | None
    low: float | None
    high: float | None
    n: int
    unit: Literal["seed", "draw"]
    draws: int
    seeds: int
    p: float | None
    least_p: float | None
    settings: tuple[Setting, ...]
    left_out: int


def ratios(runs: Sequence[Run], values: Sequence[float | None], alpha: float) -> list[Ratio]:
    """The treated arm against each other one.

    A setting of which one value is missing is left out whole: the seeds that have both need not be like the others.

    Args:
        values: one for each of `runs`, above 0; None where there is none.
        alpha: level of the tests, in (0, 1).
    """
    assert all(value is None or value > 0 for value in values), "logarithms need positive values"
    logs = np.array([np.nan if value is None else np.log(value) for value in values])
    return [_ratio(runs, control, logs, alpha) for control in controls_of(runs)]


def _ratio(runs: Sequence[Run], control: str, logs: NDArray[np.float64], alpha: float) -> Ratio:
    pairs = find_pairs(runs, control)
    tables = {found.setting: logs[found.treated] - logs[found.control] for found in pairs if found.complete}
    known = {setting: table for setting, table in tables.items() if np.isfinite(table).all()}
    draws, seeds = len(draws_of(runs)), len(seeds_of(runs))
    of_all: dict[str, Any] = {
        "control": control,
        "unit": "draw" if draws > 1 else "seed",
        "draws": draws,
        "seeds": seeds,
        "settings": tuple(known),
        "left_out": len(pairs) - len(known),
    }
    if not known:
        return Ratio(**of_all, outcome="undecided", mean=None, low=None, high=None, n=0, p=None, least_p=None)
    table = np.mean(list(known.values()), axis=0)
    estimate = level_estimate(table, 1 - alpha)
    p = _p_difference(table, estimate)
    claimed: RatioOutcome = "lower" if estimate.mean < 0 else "higher"
    return Ratio(
        **of_all,
        outcome=claimed if p is not None and p <= alpha else "undecided",
        mean=float(np.exp(estimate.mean)),
        low=None if estimate.low is None else float(np.exp(estimate.low)),
        high=None if estimate.high is None else float(np.exp(estimate.high)),
        n=estimate.n,
        p=p,
        least_p=None if p is None else smallest_p(n_pairs(table.shape)),
    )


def _p_difference(table: NDArray[np.float64], estimate: Estimate) -> float | None:
    if estimate.low is None:
        return None
    return float(max(level_mean(table).p_difference(), level_sign_flip(table)))
