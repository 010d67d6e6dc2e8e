"""The plan of the table: its noises and cells, in the order in which they run."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RATE = 0.09
"""Share of wrong labels or outliers of the main rows."""

CHOICE_SEED = 10
"""Seed of labels that no cell audits: the use of the minutes is chosen on them (`benchmarks.audit_minutes`)."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What is wrong in a row of the table.

    Attributes:
        name: in the table.
        options: of `benchmarks.label_noise`; empty if the labels are those of a file.
        rate: share of wrong labels by other networks, if they are those of a file.
        images: number of training images; None for all.
    """

    name: str
    options: tuple[str, ...] = ()
    rate: float | None = None
    images: int | None = None


def by_networks(rate: float) -> Noise:
    """Return the noise by other networks: confusions that the audited network does not share by construction."""
    return Noise(name=f"networks-{rate:g}", rate=rate)


def planted(kind: str, rate: float, images: int | None = None) -> Noise:
    """Return noise that `benchmarks.label_noise` plants."""
    name = f"{kind}-{rate:g}" + (f"-{images}" if images else "")
    return Noise(name=name, options=("--kinds", kind, "--rates", repr(rate)), images=images)


ROWS: tuple[tuple[Noise, int], ...] = (
    (by_networks(RATE), 0),
    (planted("open_set", RATE), 0),
    (planted("corrupt", RATE), 0),
    # Of the five classes that have a partner, which are half of the images.
    (planted("pair", 2 * RATE), 0),
    (by_networks(RATE), 1),
    (by_networks(RATE), 2),
    (by_networks(0.02), 0),
    (by_networks(0.2), 0),
    (planted("symmetric", RATE, 12_500), 0),
)
"""Noise and seed of each row, in the order in which they run: first one seed of each kind, then more seeds, then other
shares. All networks audit a row before the next one, so that the table is a fair comparison whenever it stops."""


def label_file(work: Path, rate: float, seed: int) -> Path:
    """Return the file of labels by other networks."""
    return work / "labels" / f"{rate:g}-seed{seed}.csv"


def label_files(work: Path) -> Iterator[tuple[Path, float, int]]:
    """Yield the files of labels with their share and seed: those of the rows, and one to choose on."""
    wanted = [(noise.rate, seed) for noise, seed in ROWS if noise.rate is not None]
    for rate, seed in dict.fromkeys([*wanted, (RATE, CHOICE_SEED)]):
        yield label_file(work, rate, seed), rate, seed
