"""Paired ratios of positive quantities between arms, and steps and images to a target loss or accuracy."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.estimates import Estimate
from pipeline.stats.hypothesis_tests import smallest_p
from pipeline.stats.replicates import (
    control_arms,
    filter_draw_names,
    find_pairs,
    n_pairs,
    replicate_estimate,
    replicate_mean,
    replicate_sign_flip,
    sorted_seeds,
)
from pipeline.stats.runs import Run, Setting, sorted_settings

RatioOutcome = Literal["lower", "higher", "undecided"]

TargetQuantity = Literal["train_loss", "top1"]

Crossing = float | Literal["at once", "never"]
"""Images until a target is reached; `at once` if the first record is beyond it, so that it was too easy for the run."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A positive quantity of the treated arm over that of the control, paired by seed.

    Attributes:
        control: the arm that the treated one is compared with.
        outcome: of the treated arm; undecided unless both tests detect a difference at alpha.
        mean, low, high: geometric mean of the ratio with its t interval of confidence 1 - alpha on the logarithmic
            scale; above 0, the ends None with a single replicate. All None if no setting is complete.
        n: number of `unit`s; 0 if no setting is complete.
        unit: what n counts: seeds of the only draw of the filter (the outcome is conditional on that draw), or draws.
        draws, seeds: numbers of each in the data; seeds per draw.
        p: the larger of the t test's and the sign-flip test's; None with a single replicate.
        least_p: smallest p of the sign-flip test with this number of replicates; above alpha nothing can be claimed.
        settings: the settings averaged, as logarithms, for each seed first.
        left_out: number of settings in which some run of either arm did not finish, or has no value.
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
    """Return the ratio of the treated arm to each other one.

    A setting with a missing value is left out entirely: the seeds that have both values may differ from the others.

    Args:
        values: one for each of `runs`, above 0; None if missing.
        alpha: level of the tests, in (0, 1).
    """
    assert all(value is None or value > 0 for value in values), "logarithms need positive values"
    logs = np.array([np.nan if value is None else np.log(value) for value in values])
    return [_ratio(runs, control, logs, alpha) for control in control_arms(runs)]


def _ratio(runs: Sequence[Run], control: str, logs: NDArray[np.float64], alpha: float) -> Ratio:
    pairs = find_pairs(runs, control)
    tables = {pair.setting: logs[pair.treated] - logs[pair.control] for pair in pairs if pair.complete}
    finite = {setting: table for setting, table in tables.items() if np.isfinite(table).all()}
    draws, seeds = len(filter_draw_names(runs)), len(sorted_seeds(runs))
    common: dict[str, Any] = {
        "control": control,
        "unit": "draw" if draws > 1 else "seed",
        "draws": draws,
        "seeds": seeds,
        "settings": tuple(finite),
        "left_out": len(pairs) - len(finite),
    }
    if not finite:
        return Ratio(**common, outcome="undecided", mean=None, low=None, high=None, n=0, p=None, least_p=None)
    table = np.mean(list(finite.values()), axis=0)
    estimate = replicate_estimate(table, 1 - alpha)
    p = _p_difference(table, estimate)
    direction: RatioOutcome = "lower" if estimate.mean < 0 else "higher"
    return Ratio(
        **common,
        outcome=direction if p is not None and p <= alpha else "undecided",
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
    return float(max(replicate_mean(table).p_difference(), replicate_sign_flip(table)))


@dataclass(frozen=True, kw_only=True)
class ArmConvergence:
    """Steps and images to the target of one arm at one setting.

    Attributes:
        n: number of finished runs.
        reached: number of them that crossed the target.
        at_once: number of them whose first record was beyond it.
        steps, images: geometric means over the runs, None unless all of them crossed it.
    """

    setting: Setting
    arm: str
    n: int
    reached: int
    at_once: int
    steps: float | None
    images: float | None


def images_to_loss(history: Sequence[tuple[int, float | None]], target: float) -> Crossing:
    """Return the number of training images processed until the training loss first falls to `target`.

    Each record is the mean loss since the one before, so it applies to the midpoint between them. Between two
    midpoints the loss is interpolated linearly.

    Args:
        history: (images processed, mean loss since the record before in nats, or None), ascending.
        target: in nats.
    """
    ends = [0, *(images for images, _ in history)]
    middles = [(start + end) / 2 for start, end in pairwise(ends)]
    points = [(at, -loss) for at, (_, loss) in zip(middles, history, strict=True) if loss is not None]
    return _first_rise(points, -target)


def images_to_accuracy(curve: Sequence[tuple[int, float]], target: float) -> Crossing:
    """Return the number of training images processed until the accuracy first rises to `target`.

    Between two measurements it is interpolated linearly.

    Args:
        curve: (images processed, accuracy at that time), ascending.
    """
    return _first_rise(curve, target)


def _first_rise(points: Sequence[tuple[float, float]], target: float) -> Crossing:
    if points and points[0][1] >= target:
        return "at once"
    for (before, below), (after, above) in pairwise(points):
        if above >= target:
            return before + (after - before) * (target - below) / (above - below)
    return "never"


def convergence(runs: Sequence[Run], quantity: TargetQuantity, target: float, alpha: float) -> dict[str, Any]:
    """Return each arm's steps and images to the target, and the ratios to the treated arm's, as plain values.

    The accuracy is of the test images, the same for all arms. The loss is of each run's own augmented training
    images. An arm without the hard images has the lower loss with the same network, so that reaching the target
    sooner does not mean learning faster. An arm of as many images chosen at random shows how much of the difference
    comes from the number of images; no arm shows how much comes from their choice.

    All pairs have the same batch size, so the ratio of images is also that of steps, unless the batch grew.

    Args:
        runs: of one study.
        target: of the quantity, stated before the runs.
        alpha: level of the tests, in (0, 1).
    """
    images_to = _images_to_loss if quantity == "train_loss" else _images_to_accuracy
    reached = [images_to(run, target) if run.finished else "never" for run in runs]
    return {
        "quantity": quantity,
        "target": target,
        "batch_grew": any(run.history_steps for run in runs),
        "arms": [
            {**asdict(row), "setting": row.setting._asdict()} for row in _arms(runs, reached) if row.n
        ],
        "ratios": [
            {**asdict(ratio), "settings": [setting._asdict() for setting in ratio.settings]}
            for ratio in ratios(runs, [_finite_or_none(images) for images in reached], alpha)
        ],
    }  # fmt: skip


def _images_to_loss(run: Run, target: float) -> Crossing:
    return images_to_loss(run.history, target)


def _images_to_accuracy(run: Run, target: float) -> Crossing:
    return images_to_accuracy(run.accuracy_to_end, target)


def _finite_or_none(images: Crossing) -> float | None:
    return None if isinstance(images, str) else images


def _arms(runs: Sequence[Run], reached: Sequence[Crossing]) -> list[ArmConvergence]:
    """Return an entry for each setting and arm, in the order of the settings and of the study's arms."""
    rows = []
    for setting in sorted_settings(runs):
        for arm in dict.fromkeys(run.arm for run in runs):
            group = [
                (run, images)
                for run, images in zip(runs, reached, strict=True)
                if run.setting == setting and run.arm == arm and run.finished
            ]
            values = [value for _, value in group]
            images = [value for value in values if not isinstance(value, str)]
            steps = [run.steps_after(value) for run, value in group if not isinstance(value, str)]
            all_reached = len(images) == len(values) > 0
            rows.append(
                ArmConvergence(
                    setting=setting,
                    arm=arm,
                    n=len(values),
                    reached=len(images),
                    at_once=values.count("at once"),
                    steps=_geometric_mean(steps) if all_reached else None,
                    images=_geometric_mean(images) if all_reached else None,
                )
            )
    return rows


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
