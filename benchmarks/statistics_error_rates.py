"""Simulate the error rates of the tests in pipeline/stats at realistic numbers of seeds and draws.

Simulated studies with known truth pass through the functions that test real ones. Measured are the type-I error at 5 %,
the coverage of the 95 % interval, power, the error of the equivalence test at its margin, and the chance of any false
claim among several batch sizes. Each rate has its Monte-Carlo uncertainty, Wilson's 95 % interval.

The arms of a seed correlate, as do its batch sizes. Runs have a standard deviation of 0.18 points in addition to the
effect of their seed on both arms. Draws of the filter have the same standard deviation if several are compared. So does
the effect of a seed on the filtered arm of every draw, in designs with a seed effect. Noise is normal in both arms, or
skewed to the left in the treated arm (a reversed exponential), as if some runs failed.

Studies with looks, and slopes on the batch size, are simulated from differences of one standard deviation: normal, or
gamma distributed with a skewness of 0.5 or 1. Effects and the margin (1.2) are in that unit.

    python -m benchmarks.statistics_error_rates --out .work/error_rates.csv
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.printing import Row, print_table
from pipeline.artifacts.tables import write_csv
from pipeline.replication.claim_data import slope
from pipeline.stats import wilson_interval
from pipeline.stats.estimates import StudentMean, student_mean
from pipeline.stats.hypothesis_tests import holm
from pipeline.stats.per_class import hierarchical_bootstrap
from pipeline.stats.replicates import replicate_mean, replicate_sign_flip
from pipeline.stats.sequential import Levels, SequentialDesign, first_outcomes, outcomes

Noise = Literal["normal", "skewed"]
Floats = NDArray[np.float64]

COUNTS = (3, 4, 5, 6, 10)
SETTINGS = 4
SEEDS_OF_A_DRAW = 6
SPREAD = 0.0018
EFFECT = MARGIN = 0.003
ALPHA = 0.05
IMAGES = 200

LOOKS = (6, 8, 10, 12)
SKEWS = (0.0, 0.5, 1.0)
MARGIN_IN_SD = 1.2
EFFECTS_IN_SD = (0.6, 1.2, 1.7)
DRAW_IN_SD = 0.5
"""Standard deviation between replicates of the filter, in studies that wrongly count the seeds of three draws."""

BATCH_SIZES = (256, 2048, 6272, 20480)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The design of a simulated study.

    Attributes:
        shared_control: whether all draws are compared with the same runs, as with `full`.
        draw_spread: standard deviation between replicates of the filter; 0 for one draw.
        seed_spread: standard deviation of the effect of a seed on the treated arm of every draw, not on the control.
    """

    noise: Noise
    draws: int
    seeds: int
    shared_control: bool
    draw_spread: float = 0.0
    seed_spread: float = 0.0

    def differences(self, rng: np.random.Generator, simulations: int) -> Floats:
        """Return treated - control, (simulations, draws, seeds, SETTINGS), whose true mean is 0."""
        common = 2 * SPREAD * rng.normal(size=(simulations, 1, self.seeds, 1))
        draws = self.draw_spread * rng.normal(size=(simulations, self.draws, 1, 1))
        control_draws = 1 if self.shared_control else self.draws
        seeds = self.seed_spread * rng.normal(size=(simulations, 1, self.seeds, 1))
        treated = common + draws + seeds + self._runs(rng, simulations, self.draws, self.noise)
        return treated - (common + self._runs(rng, simulations, control_draws, "normal"))

    def _runs(self, rng: np.random.Generator, simulations: int, draws: int, noise: Noise) -> Floats:
        """Return the noise of runs; the settings of a seed share half of its variance."""
        parts = []
        for settings in (1, SETTINGS):
            shape = (simulations, draws, self.seeds, settings)
            parts.append(rng.normal(size=shape) if noise == "normal" else 1 - rng.exponential(size=shape))
        return np.asarray(SPREAD * 0.5**0.5 * (parts[0] + parts[1]))

    def row(self, test: str, quantity: str, nominal: float | None, hits: NDArray[np.bool_] | np.bool_) -> Row:
        """Return a row: the share of `hits` (simulations,), and its nominal value if known."""
        control = "shared" if self.shared_control else "own"
        if self.seed_spread:
            control += ", seed effect"
        return _row(test, quantity, self.noise, self.draws, self.seeds, control, nominal, hits)


def _row(
    test: str,
    quantity: str,
    noise: str,
    draws: int,
    seeds: int,
    control: str,
    nominal: float | None,
    hits: NDArray[np.bool_] | np.bool_,
) -> Row:
    n = hits.size
    low, high = wilson_interval(int(hits.sum()), n, 0.95)
    return {
        "test": test, "quantity": quantity, "noise": noise, "draws": draws, "seeds": seeds,
        "control": control, "nominal": "" if nominal is None else f"{nominal:g}",
        "rate": round(float(hits.mean()), 4), "low": round(low, 4), "high": round(high, 4),
        "simulations": n,
    }  # fmt: skip


def _covers(mean: StudentMean) -> NDArray[np.bool_]:
    low, high = mean.interval(1 - ALPHA)
    return (low <= 0) & (high >= 0)


def pooled_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Yield the rates of the primary test over all settings: without an effect, with one, and at both margins."""
    pooled = design.differences(rng, simulations).mean(axis=-1)
    for shift, quantity, nominal in ((0.0, "type I", ALPHA), (EFFECT, "power", None)):
        t, flips = replicate_mean(pooled + shift).p_difference(), replicate_sign_flip(pooled + shift)
        yield design.row("t", quantity, nominal, t <= ALPHA)
        yield design.row("sign flips", quantity, nominal, flips <= ALPHA)
        yield design.row("both (claim)", quantity, nominal, np.maximum(t, flips) <= ALPHA)
    centered = replicate_mean(pooled)
    yield design.row("t", "coverage", 1 - ALPHA, _covers(centered))
    yield design.row("TOST", "power at no effect", None, centered.p_equivalence(MARGIN) <= ALPHA)
    # Skewed noise errs more at one margin than at the other.
    for margin, opposite in ((-MARGIN, "helps"), (MARGIN, "hurts")):
        mean = replicate_mean(pooled + margin)
        p = mean.p_equivalence(MARGIN)
        yield design.row("TOST", f"error at {margin:+g}", ALPHA, p <= ALPHA)
        p_claim = np.maximum(mean.p_difference(), replicate_sign_flip(pooled + margin))
        verdicts = outcomes(mean.mean, p_claim, p, Levels(ALPHA, ALPHA))
        yield design.row("verdict", f"false at {margin:+g}", ALPHA, np.isin(verdicts, ["equivalent", opposite]))


def family_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Yield the rates of any false claim of a difference among the settings, each tested separately."""
    settings = np.moveaxis(design.differences(rng, simulations), -1, 1)
    t = replicate_mean(settings).p_difference()
    both = np.maximum(t, replicate_sign_flip(settings))
    for test, p in (("t, not adjusted", t), ("t, Holm", holm(t)), ("both, Holm (claim)", holm(both))):
        yield design.row(test, f"any of {SETTINGS} false", ALPHA, (p <= ALPHA).any(axis=-1))


def pseudo_replication_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Yield the error of a verdict on one replicate of the filter that is read as one on all draws."""
    pooled = design.differences(rng, simulations).mean(axis=-1)
    p = replicate_mean(pooled).p_difference()
    yield design.row("t, read beyond its draw", "type I", ALPHA, p <= ALPHA)


def shared_seed_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Yield the error of treating draws that share their seeds as independent, which `crossed_mean` avoids."""
    pooled = design.differences(rng, simulations).mean(axis=-1)
    p = student_mean(pooled.mean(axis=-1)).p_difference()
    yield design.row("t, draws taken as independent", "type I", ALPHA, p <= ALPHA)


def sequential_rates(rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Yield the rates of studies with looks, and of studies with 6 and 12 seeds and the same test.

    For one batch size, and for the mean over SETTINGS. If the draw is the unit, the differences are the means of draws
    with separate seeds. The wrong analysis counts the seeds of three draws.
    """
    for looks in (LOOKS, LOOKS[:1], LOOKS[-1:]):
        design = SequentialDesign(looks=looks, margin=MARGIN_IN_SD, alpha=ALPHA)
        for skew in SKEWS:
            for settings in (1, SETTINGS):
                noise = _skewed(rng, (simulations, LOOKS[-1], settings), skew).mean(axis=-1) * settings**0.5
                name = (f"skew {skew:g}" if skew else "normal") + (
                    f", mean of {settings} sizes" if settings > 1 else ""
                )
                yield from _at_looks(design, noise, name, draws=1)
        seeds = SEEDS_OF_A_DRAW
        of_draws = _skewed(rng, (simulations, LOOKS[-1], seeds), 1.0).mean(axis=-1) * seeds**0.5
        yield from _at_looks(design, of_draws, "skew 1, the draw is the unit", draws=looks[-1])
        draw_effects = DRAW_IN_SD * rng.normal(size=(simulations, 3))
        seeds_of_three = draw_effects[:, np.arange(LOOKS[-1]) % 3] + rng.normal(size=(simulations, LOOKS[-1]))
        verdicts, _ = first_outcomes(replace(design, margin=1e-9), seeds_of_three)
        hits = np.isin(verdicts, ["helps", "hurts"])
        name = "normal, seeds of 3 draws counted"
        yield _row(_name(design), "type I, margin next to 0", name, 3, looks[-1], "own", ALPHA, hits)


def _skewed(rng: np.random.Generator, shape: tuple[int, ...], skew: float) -> Floats:
    """Return noise of mean 0 and standard deviation 1: normal, or gamma with skewness `skew`."""
    if skew == 0:
        return rng.normal(size=shape)
    alpha = 4 / skew**2
    return np.asarray((rng.gamma(alpha, size=shape) - alpha) / alpha**0.5)


def _name(design: SequentialDesign) -> str:
    return f"t at {', '.join(map(str, design.looks))} seeds"


def _at_looks(design: SequentialDesign, noise: Floats, name: str, *, draws: int) -> Iterator[Row]:
    def row(quantity: str, nominal: float | None, hits: NDArray[np.bool_]) -> Row:
        return _row(_name(design), quantity, name, draws, design.looks[-1], "own", nominal, hits)

    def claims(effect: float, *claimed: str) -> NDArray[np.bool_]:
        return np.isin(first_outcomes(design, noise + effect)[0], claimed)

    # With a wide margin many small differences are equivalent at an early look.
    narrow = first_outcomes(replace(design, margin=1e-9), noise)[0]
    yield row("type I, margin next to 0", ALPHA, np.isin(narrow, ["helps", "hurts"]))
    yield row("type I", ALPHA, claims(0, "helps", "hurts"))
    yield row("false at -margin", ALPHA, claims(-MARGIN_IN_SD, "equivalent", "helps"))
    yield row("false at +margin", ALPHA, claims(MARGIN_IN_SD, "equivalent", "hurts"))
    yield row("equivalent at no effect", None, claims(0, "equivalent"))
    for effect in EFFECTS_IN_SD:
        yield row(f"difference found at {effect:g} sd", None, claims(effect, "helps"))
    for effect in (0.0, *EFFECTS_IN_SD):
        yield _mean_seeds(design, noise, name, draws, effect)


def _mean_seeds(design: SequentialDesign, noise: Floats, name: str, draws: int, effect: float) -> Row:
    """Return the mean number of seeds that studies use, with its 95 % interval; not a rate."""
    used = first_outcomes(design, noise + effect)[1]
    half = 1.96 * used.std() / used.size**0.5
    return {
        "test": _name(design), "quantity": f"mean seeds at {effect:g} sd", "noise": name, "draws": draws,
        "seeds": design.looks[-1], "control": "own", "nominal": "", "rate": round(float(used.mean()), 4),
        "low": round(float(used.mean() - half), 4), "high": round(float(used.mean() + half), 4),
        "simulations": used.size,
    }  # fmt: skip


def slope_rates(rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Yield the error of testing each seed's slope of the gain on log2(batch size).

    The largest batch varies three times as much as the smallest.
    """
    spread = np.linspace(1, 3, len(BATCH_SIZES))
    for seeds in (2, 4, 6, 12):
        for skew in SKEWS:
            gains = rng.normal(size=(simulations, seeds, 1)) + spread * _skewed(
                rng, (simulations, seeds, len(BATCH_SIZES)), skew
            )
            p = student_mean(slope(np.log2(BATCH_SIZES), gains)).p_difference()
            name = f"skew {skew:g}" if skew else "normal"
            yield _row("slope on log2(batch size)", "type I", name, 1, seeds, "own", ALPHA, p <= ALPHA)


def bootstrap_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Yield the coverage for other seeds and images of the bootstrap, and of Student's interval over seeds alone."""
    for quantity, image_spread in (("coverage, seeds vary most", SPREAD), ("coverage, images vary most", 10 * SPREAD)):
        covered = np.empty((2, simulations), dtype=np.bool_)
        for simulation in range(simulations):
            images, rest = (image_spread * rng.normal(size=(1, rows, IMAGES)) for rows in (1, design.seeds))
            differences = images + rest + SPREAD * rng.normal(size=(1, design.seeds, 1))
            low, high = hierarchical_bootstrap(differences, confidence=1 - ALPHA, resamples=500, seed=simulation)
            student = _covers(replicate_mean(differences.mean(axis=-1)))
            covered[:, simulation] = low <= 0 <= high, student
        yield design.row("bootstrap", quantity, 1 - ALPHA, covered[0])
        yield design.row("t", quantity, 1 - ALPHA, covered[1])


def error_rates(simulations: int, seed: int = 0) -> list[Row]:
    """Return all rates; the bootstrap, which runs study by study, uses a tenth of the simulations."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    noises: tuple[Noise, ...] = ("normal", "skewed")
    for noise in noises:
        for n in COUNTS:
            single = Design(noise=noise, draws=1, seeds=n, shared_control=False)
            rows += pooled_rates(single, rng, simulations)
            rows += family_rates(single, rng, simulations)
            kinds = [(False, 0.0, SEEDS_OF_A_DRAW), (True, 0.0, SEEDS_OF_A_DRAW)]
            for shared, seed_spread, seeds in [*kinds, *((False, SPREAD, few) for few in (2, SEEDS_OF_A_DRAW))]:
                several = Design(
                    noise=noise, draws=n, seeds=seeds, shared_control=shared, draw_spread=SPREAD,
                    seed_spread=seed_spread,
                )  # fmt: skip
                rows += pooled_rates(several, rng, simulations)
                rows += family_rates(several, rng, simulations)
                rows += shared_seed_rates(several, rng, simulations) if seed_spread else []
    rows += sequential_rates(rng, simulations)
    rows += slope_rates(rng, simulations)
    for n in COUNTS:
        varying = Design(noise="normal", draws=1, seeds=n, shared_control=False, draw_spread=SPREAD)
        rows += pseudo_replication_rates(varying, rng, simulations)
        rows += bootstrap_rates(Design(noise="normal", draws=1, seeds=n, shared_control=False), rng, simulations // 10)
    return rows


def main() -> None:
    """Print the table; with `--out` also write it as CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="CSV file of the table")
    parser.add_argument("--simulations", type=int, default=10_000, help="simulated studies per design")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = error_rates(arguments.simulations, arguments.seed)
    print_table(rows)
    if arguments.out:
        write_csv(arguments.out, pa.Table.from_pylist(rows))


if __name__ == "__main__":
    main()
