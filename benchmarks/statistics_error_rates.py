"""How often do the tests of pipeline/stats err, with the numbers of seeds and draws that studies really have?

Made-up studies whose truth is known go through the functions that judge real ones: type-I error at 5 %, coverage of
the 95 % interval, power, the error of the equivalence test at its margin, and the chance of any false claim among
several batch sizes. Each rate comes with its own Monte-Carlo uncertainty, a 95 % interval of Wilson's.

The arms of a seed correlate, as do its batch sizes. Runs have a standard deviation of .18 points beside what their
seed gives both arms; so do draws of the filter where several are compared. Noise is normal in both arms, or in the
treated arm skewed to the left (a reversed exponential), as where some runs fail.

    python -m benchmarks.statistics_error_rates --out .work/error_rates.csv
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.printing import Row, print_table
from pipeline.artifacts.tables import write_csv
from pipeline.stats import wilson_interval
from pipeline.stats.bootstrap import hierarchical_bootstrap
from pipeline.stats.levels import level_mean, level_sign_flip
from pipeline.stats.multiplicity import holm
from pipeline.stats.student import StudentMean
from pipeline.stats.verdict import outcomes

Noise = Literal["normal", "skewed"]
Floats = NDArray[np.float64]

COUNTS = (3, 4, 5, 6, 10)
SETTINGS = 4
SEEDS_OF_A_DRAW = 6
SPREAD = 0.0018
EFFECT = MARGIN = 0.003
ALPHA = 0.05
IMAGES = 200


@dataclass(frozen=True, kw_only=True)
class Design:
    """A made-up study: `draw_spread` is the standard deviation of the filter's draws, 0 where there is one."""

    noise: Noise
    draws: int
    seeds: int
    shared_control: bool
    draw_spread: float = 0.0

    def differences(self, rng: np.random.Generator, simulations: int) -> Floats:
        """Treated - control, (simulations, draws, seeds, SETTINGS), whose true mean is 0."""
        common = 2 * SPREAD * rng.normal(size=(simulations, 1, self.seeds, 1))
        draws = self.draw_spread * rng.normal(size=(simulations, self.draws, 1, 1))
        control_draws = 1 if self.shared_control else self.draws
        treated = common + draws + self._runs(rng, simulations, self.draws, self.noise)
        return treated - (common + self._runs(rng, simulations, control_draws, "normal"))

    def _runs(self, rng: np.random.Generator, simulations: int, draws: int, noise: Noise) -> Floats:
        """Half of a run's variance is common to the settings of its seed."""
        parts = []
        for settings in (1, SETTINGS):
            shape = (simulations, draws, self.seeds, settings)
            parts.append(rng.normal(size=shape) if noise == "normal" else 1 - rng.exponential(size=shape))
        return np.asarray(SPREAD * 0.5**0.5 * (parts[0] + parts[1]))

    def row(self, test: str, quantity: str, nominal: float | None, hits: NDArray[np.bool_] | np.bool_) -> Row:
        """The share of `hits` (simulations,) beside what it should be, where that is known."""
        n = hits.size
        low, high = wilson_interval(int(hits.sum()), n, 0.95)
        control = "shared" if self.shared_control else "own"
        return {
            "test": test, "quantity": quantity, "noise": self.noise, "draws": self.draws, "seeds": self.seeds,
            "control": control, "nominal": "" if nominal is None else f"{nominal:g}",
            "rate": round(float(hits.mean()), 4), "low": round(low, 4), "high": round(high, 4),
            "simulations": n,
        }  # fmt: skip


def _covers(found: StudentMean) -> NDArray[np.bool_]:
    low, high = found.interval(1 - ALPHA)
    return (low <= 0) & (high >= 0)


def pooled_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """The primary test, over all settings: without an effect, with one, and at both margins."""
    pooled = design.differences(rng, simulations).mean(axis=-1)
    shared = design.shared_control
    for shift, quantity, nominal in ((0.0, "type I", ALPHA), (EFFECT, "power", None)):
        found = level_mean(pooled + shift, shared_control=shared)
        t, flips = found.p_difference(), level_sign_flip(pooled + shift, shared_control=shared)
        yield design.row("t", quantity, nominal, t <= ALPHA)
        yield design.row("sign flips", quantity, nominal, flips <= ALPHA)
        yield design.row("both (claim)", quantity, nominal, np.maximum(t, flips) <= ALPHA)
    centred = level_mean(pooled, shared_control=shared)
    yield design.row("t", "coverage", 1 - ALPHA, _covers(centred))
    yield design.row("TOST", "power at no effect", None, centred.p_equivalence(MARGIN) <= ALPHA)
    # Skewed noise errs more at one margin than at the other.
    for margin, opposite in ((-MARGIN, "helps"), (MARGIN, "hurts")):
        found = level_mean(pooled + margin, shared_control=shared)
        p = found.p_equivalence(MARGIN)
        yield design.row("TOST", f"error at {margin:+g}", ALPHA, p <= ALPHA)
        p_claim = np.maximum(found.p_difference(), level_sign_flip(pooled + margin, shared_control=shared))
        verdicts = outcomes(found.mean, p_claim, p, ALPHA)
        yield design.row("verdict", f"false at {margin:+g}", ALPHA, np.isin(verdicts, ["equivalent", opposite]))


def family_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Any false claim of a difference among the settings, each tested on its own."""
    settings = np.moveaxis(design.differences(rng, simulations), -1, 1)
    t = level_mean(settings, shared_control=design.shared_control).p_difference()
    both = np.maximum(t, level_sign_flip(settings, shared_control=design.shared_control))
    for test, p in (("t, not adjusted", t), ("t, Holm", holm(t)), ("both, Holm (claim)", holm(both))):
        yield design.row(test, f"any of {SETTINGS} false", ALPHA, (p <= ALPHA).any(axis=-1))


def pseudo_replication_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Seeds of one draw, taken as evidence on all draws of the filter: what a verdict on one draw must not say."""
    pooled = design.differences(rng, simulations).mean(axis=-1)
    p = level_mean(pooled, shared_control=False).p_difference()
    yield design.row("t, read beyond its draw", "type I", ALPHA, p <= ALPHA)


def bootstrap_rates(design: Design, rng: np.random.Generator, simulations: int) -> Iterator[Row]:
    """Coverage for other seeds and images: of the bootstrap, and of Student's interval, which knows seeds alone."""
    for quantity, image_spread in (("coverage, seeds vary most", SPREAD), ("coverage, images vary most", 10 * SPREAD)):
        covered = np.empty((2, simulations), dtype=np.bool_)
        for simulation in range(simulations):
            images, rest = (image_spread * rng.normal(size=(1, rows, IMAGES)) for rows in (1, design.seeds))
            differences = images + rest + SPREAD * rng.normal(size=(1, design.seeds, 1))
            low, high = hierarchical_bootstrap(differences, confidence=1 - ALPHA, resamples=500, seed=simulation)
            student = _covers(level_mean(differences.mean(axis=-1), shared_control=False))
            covered[:, simulation] = low <= 0 <= high, student
        yield design.row("bootstrap", quantity, 1 - ALPHA, covered[0])
        yield design.row("t", quantity, 1 - ALPHA, covered[1])


def error_rates(simulations: int, seed: int = 0) -> list[Row]:
    """Everything; the bootstrap, which cannot take many studies at once, with a tenth of the simulations."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    noises: tuple[Noise, ...] = ("normal", "skewed")
    for noise in noises:
        for n in COUNTS:
            one = Design(noise=noise, draws=1, seeds=n, shared_control=False)
            rows += pooled_rates(one, rng, simulations)
            rows += family_rates(one, rng, simulations)
            for shared in (False, True):
                several = Design(noise=noise, draws=n, seeds=SEEDS_OF_A_DRAW, shared_control=shared, draw_spread=SPREAD)
                rows += pooled_rates(several, rng, simulations)
                rows += family_rates(several, rng, simulations)
    for n in COUNTS:
        lucky = Design(noise="normal", draws=1, seeds=n, shared_control=False, draw_spread=SPREAD)
        rows += pseudo_replication_rates(lucky, rng, simulations)
        rows += bootstrap_rates(Design(noise="normal", draws=1, seeds=n, shared_control=False), rng, simulations // 10)
    return rows


def main() -> None:
    """Print the table, and write it as CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="CSV file for the table")
    parser.add_argument("--simulations", type=int, default=10_000, help="made-up studies of each design")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows = error_rates(arguments.simulations, arguments.seed)
    print_table(rows)
    if arguments.out:
        write_csv(arguments.out, pa.Table.from_pylist(rows))


if __name__ == "__main__":
    main()
