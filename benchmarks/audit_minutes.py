"""Measure which use of the training minutes finds most wrong labels.

`one` network takes all minutes. `two_rounds`: a network of half the steps, whose most suspect images are dropped, then
one on the rest, which scores all images. `two_averaged`: two networks of half the steps with other random numbers, and
their mean probabilities. `two_folds`: a network for each half of the images. `wider`: `resnet9_wide`. `twice`: one
network for twice the minutes, as a reference. Minutes are steps at the measured speed of each network, and those of
training alone. Extracting the features of all images takes one pass for `one`, and two for networks that share the
minutes. Each cell is a case of `benchmarks.label_noise`, whose data, noise and measures these are.

    OMP_NUM_THREADS=1 nice -n 19 python -m benchmarks.audit_minutes --data data --labels labels.csv --seeds 0 1 2
    python -m benchmarks.audit_minutes --data data --labels labels.csv --seeds 0 1 2 --summarize
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.audit_cells import (
    Cell,
    format_spread,
    measured_speeds,
    read_results,
    run_cells,
    table_rows,
    write_cell_params,
)
from benchmarks.label_noise.cases import ALL_KINDS
from benchmarks.printing import Row, print_table
from pipeline.artifacts.prepared import prepared_digest
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.commands.iterate.running import StageFailedError
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.stages.harness import exit_codes

SCORERS = ("label_odds", "self_confidence", "aum")
_RESAMPLES = 100


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of the minutes.

    Attributes:
        options: of `benchmarks.label_noise`.
        wide: whether the network is the wider one.
        times: the minutes.
    """

    options: tuple[str, ...] = ()
    wide: bool = False
    times: int = 1


USES: Mapping[str, Use] = {
    "one": Use(),
    "two_rounds": Use(options=("--variants", "two_rounds")),
    "two_averaged": Use(options=("--variants", "averaged")),
    "two_folds": Use(options=("--folds", "2")),
    "wider": Use(wide=True),
    "twice": Use(times=2),
}


def network_of(use: Use, params: Params) -> str:
    """Return the network of a use: the first one of the parameters, or the wider one of its kind."""
    return f"{params.networks[0]}_wide" if use.wide else params.networks[0]


def use_options(name: str, *, network: str, seconds: float, speed: float, shared: Path) -> tuple[str, ...]:
    """Return the options of `benchmarks.label_noise` for a use.

    Args:
        speed: seconds per step of the network.
        shared: folder of the cells of one seed and noise.
    """
    use = USES[name]
    work = shared / f"{network}-{use.times}x"
    time = ("--seconds", f"{use.times * seconds!r}", "--seconds-per-step", repr(speed))
    return (*use.options, "--work", str(work), *time)


def iter_cells(arguments: argparse.Namespace, params: Params, speeds: Mapping[str, float]) -> Iterator[Cell]:
    """Yield the cells, each seed complete before the next; `speeds` is empty if nothing is to be run."""
    noises: list[tuple[str, tuple[str, ...]]] = []
    if arguments.labels is not None:
        noises.append(("given", ("--labels", str(arguments.labels))))
    noises += [
        (f"{kind}-{rate:g}", ("--kinds", kind, "--rates", repr(rate)))
        for kind, rate in product(arguments.kinds, arguments.rates)
    ]
    for seed, (noise, labels), name in product(arguments.seeds, noises, arguments.uses):
        network = network_of(USES[name], params)
        options: tuple[str, ...] = ()
        if speeds:
            file = arguments.work / "params" / f"{network}-seed{seed}.yaml"
            shared = arguments.work / "cells" / f"{noise}-seed{seed}"
            options = (
                *(
                    "--data",
                    str(arguments.data),
                    "--params",
                    str(write_cell_params(file, params, network=network, seed=seed)),
                ),
                *labels,
                *("--seed", str(seed), "--clock", arguments.clock, "--drop-share", repr(arguments.drop_share)),
                *(("--images", str(arguments.images)) if arguments.images else ()),
                *("--scorers", *SCORERS, "--default", SCORERS[0], "--predictions-only", "--resamples", str(_RESAMPLES)),
                *use_options(name, network=network, seconds=arguments.seconds, speed=speeds[network], shared=shared),
            )
        yield Cell(noise=noise, arm=name, seed=seed, options=options)


def gain_rows(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a row for each noise, use and scorer: its AUROC and precision at 5 % minus those of `one`, by seed."""
    by_cell = {(result["noise"], result["arm"], result["seed"]): result["scorers"] for result in results}
    rows: list[Row] = []
    for noise, arm, scorer in dict.fromkeys(
        (noise, arm, scorer) for (noise, arm, _), scorers in by_cell.items() for scorer in scorers if arm != "one"
    ):
        pairs = [
            (scorers[scorer]["measures"], by_cell[noise, "one", seed][scorer]["measures"])
            for (other, use, seed), scorers in by_cell.items()
            if (other, use) == (noise, arm) and (noise, "one", seed) in by_cell
        ]
        if pairs:
            row: dict[str, str | int] = {"noise": noise, "use": arm, "scorer": scorer}
            for measure in ("auroc", "precision_at_5_percent"):
                gains = np.array([mine[measure]["value"] - ones[measure]["value"] for mine, ones in pairs])
                row[f"{measure} minus one"] = format_spread(gains.tolist())
            rows.append({**row, "n": len(pairs)})
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the cells without results, and print the table of the finished ones."""
    with exit_codes():
        arguments = _parse(argv)
        params = load_params(arguments.params)
        try:
            speeds = {} if arguments.summarize else _speeds(arguments, params)
            cells = list(iter_cells(arguments, params, speeds))
            if not arguments.summarize:
                run_cells(cells, arguments.work)
        except StageFailedError as error:
            sys.exit(error.code)
        results = read_results(cells, arguments.work)
        if not results:
            raise InputError(f"--work: {arguments.work} has no finished cell; run without --summarize first")
        print_table(table_rows(results, SCORERS))
        if rows := gain_rows(results):
            print()
            print_table(rows)
        print(f"\n{len(results)} of {len(cells)} cells are finished; n is the number of seeds")
        print(
            json.dumps(
                {**vars(arguments), "results": [str(cell.result(arguments.work)) for cell in cells]}, default=str
            )
        )


def _speeds(arguments: argparse.Namespace, params: Params) -> dict[str, float]:
    networks = dict.fromkeys(network_of(USES[use], params) for use in arguments.uses)
    folder = arguments.work / "params"
    files = {name: write_cell_params(folder / f"{name}.yaml", params, network=name, seed=0) for name in networks}
    identity = {
        "data": prepared_digest(DataPaths(root=arguments.data)),
        "labels": sha256_of_file(arguments.labels) if arguments.labels else None,
        "params": sha256_of_file(arguments.params),
        "images": arguments.images,
        "seconds": arguments.seconds,
        "clock": arguments.clock,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "drop_share": arguments.drop_share,
    }
    trained = {name: load_params(file) for name, file in files.items()}
    return measured_speeds(arguments.work / "plan.json", trained, arguments.data, identity)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.audit_minutes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with prepare/")
    parser.add_argument(
        "--params", type=Path, default=Path("presets/audit.yaml"), help="recipe of the network (default: %(default)s)"
    )
    parser.add_argument("--work", type=Path, default=Path(".work/audit_minutes"), help="folder of cells and results")
    parser.add_argument("--images", type=int, help="number of training images (default: all)")
    parser.add_argument("--seconds", type=float, default=600.0, help="training time of each use (default: 600)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="cpu", help="as benchmarks.label_noise")
    parser.add_argument("--kinds", nargs="+", choices=ALL_KINDS, default=[], help="kinds of noise to plant")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1], help="shares of wrong labels or outliers")
    parser.add_argument("--labels", type=Path, help="CSV path,label: labels to audit")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of planted noise and of training")
    parser.add_argument("--uses", nargs="+", choices=tuple(USES), default=list(USES))
    parser.add_argument("--drop-share", type=float, default=0.1, help="share that two_rounds drops (default: 0.1)")
    parser.add_argument("--summarize", action="store_true", help="print the table of finished cells; run nothing")
    arguments = parser.parse_args(argv)
    if not arguments.kinds and arguments.labels is None:
        raise InputError("--kinds: missing, and there are no --labels; give one of them")
    return arguments


if __name__ == "__main__":
    main()
