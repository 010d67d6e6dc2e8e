"""Audit JPEG images with every kind of noise by ResNet-18, ResNet-9 and the best use of the minutes, at equal time.

It prepares the archive, trains other networks that give wrong labels, and runs the cells of `plan.ROWS` in their order.
Each cell is a case of `benchmarks.label_noise` with every scorer. All is kept: after a kill the same command goes on.
Time is counted in seconds of one processor core, so a run next to other work trains as many steps as one alone: the
default of 1,200 is ten minutes of two cores, if two threads are twice as fast as one. Run it with one thread.

    export OMP_NUM_THREADS=1
    nice -n 19 python -m benchmarks.audit_table --images cifar10-jpeg.tar.xz --until labels
    nice -n 19 python -m benchmarks.audit_table --images cifar10-jpeg.tar.xz --best one
    python -m benchmarks.audit_table --images cifar10-jpeg.tar.xz --summarize
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ruamel.yaml import YAML

from benchmarks.audit_cells import Cell, measured_speeds, read_results, run_cells, table_rows, write_cell_params
from benchmarks.audit_minutes import USES, network_of, use_options
from benchmarks.audit_table.plan import (
    NOISE_NETWORKS,
    ROWS,
    Noise,
    audit_params,
    label_file,
    label_files,
    noise_params,
)
from benchmarks.label_noise.choices import NAMES
from benchmarks.network_noise import write_noise
from benchmarks.printing import print_table
from pipeline.artifacts.files import atomic_path, write_json
from pipeline.artifacts.prepared import prepared_digest
from pipeline.commands.iterate.running import StageFailedError, StageProcesses
from pipeline.config.params import Params
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.stages.harness import exit_codes

_DEFAULT_SCORER = "label_odds"
_BASE = "resnet9"
_STEPS = ("prepare", "labels", "cells")


def make_labels(arguments: argparse.Namespace) -> None:
    """Prepare the images, train the networks of the noise, and write the files of labels, as far as `--until` says.

    Raises:
        InputError: `--work` has labels of other networks, or the archive is not usable.
        StageFailedError: a stage failed; it has printed the reason.
    """
    params = arguments.work / "noise.yaml"
    tree = noise_params(arguments.images, epochs=arguments.noise_epochs, side=arguments.side)
    if params.exists() and YAML(typ="safe", pure=True).load(params) != tree:
        raise InputError(f"{params}: is of other images, epochs or sizes; choose another --work, or delete that folder")
    with atomic_path(params) as temporary, temporary.open("w", encoding="utf-8") as text:
        YAML(typ="safe", pure=True).dump(tree, text)
    data = DataPaths(root=arguments.work / "data")
    stages = [("prepare", None), *((stage, name) for name in NOISE_NETWORKS for stage in ("finetune", "extract"))]
    for stage, network in stages if arguments.until != "prepare" else stages[:1]:
        if not data.provenance(stage, network).exists():
            print(f"noise: {stage} {network or ''}".rstrip(), flush=True)
            processes = StageProcesses(network)
            with processes.forwarding_signals():
                processes.run(stage, params, data, WorkPaths(root=arguments.work / "noise"))
    if arguments.until != "prepare":
        for file, rate, seed in label_files(arguments.work):
            if not file.exists():
                write_noise(data, NOISE_NETWORKS, rate, seed=seed, out=file)


def table_arms(arguments: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """Return arm -> network and use of the minutes."""
    arms = {"resnet18": ("resnet18", "one"), _BASE: (_BASE, "one")}
    if arguments.best != "one":
        base = audit_params(arguments.images, _BASE, side=arguments.side)
        arms[arguments.best] = (network_of(USES[arguments.best], base), arguments.best)
    return arms


def iter_cells(arguments: argparse.Namespace, speeds: Mapping[str, float]) -> Iterator[Cell]:
    """Yield the cells in the order of `plan.ROWS`; `speeds` is empty if nothing is to be run."""
    for noise, seed in ROWS:
        shown = replace(noise, images=arguments.few if noise.images else None)
        for arm, (network, use) in table_arms(arguments).items():
            options: tuple[str, ...] = ()
            if speeds:
                params = write_cell_params(
                    arguments.work / "params" / f"{network}-seed{seed}.yaml",
                    audit_params(arguments.images, network, side=arguments.side),
                    network=network,
                    seed=seed,
                )
                shared = arguments.work / "cells" / f"{noise.name}-seed{seed}"
                time = use_options(
                    use, network=network, seconds=arguments.seconds, speed=speeds[network], shared=shared
                )
                options = (*_noise_options(arguments, shown, seed), "--params", str(params), *time)
            yield Cell(noise=noise.name, arm=arm, seed=seed, options=options)


def _noise_options(arguments: argparse.Namespace, noise: Noise, seed: int) -> tuple[str, ...]:
    labels = noise.options if noise.rate is None else ("--labels", str(label_file(arguments.work, noise.rate, seed)))
    few = ("--images", str(noise.images)) if noise.images else ()
    data, scoring = (
        str(arguments.work / "data"),
        ("--default", _DEFAULT_SCORER, "--resamples", str(arguments.resamples)),
    )
    return ("--data", data, *labels, *few, "--seed", str(seed), "--clock", "cpu", *scoring)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table of the finished cells."""
    with exit_codes():
        arguments = _parse(argv)
        try:
            if not arguments.summarize:
                make_labels(arguments)
                if arguments.until == "cells":
                    run_cells(list(iter_cells(arguments, _speeds(arguments))), arguments.work)
        except StageFailedError as error:
            sys.exit(error.code)
        if arguments.until == "cells":
            _summarize(arguments, list(iter_cells(arguments, {})))


def _summarize(arguments: argparse.Namespace, cells: Sequence[Cell]) -> None:
    results = read_results(cells, arguments.work)
    if not results:
        raise InputError(f"--work: {arguments.work} has no finished cell; run without --summarize first")
    rows = table_rows(results, NAMES)
    print_table(rows)
    write_json(arguments.work / "table.json", rows)
    missing = [cell.name for cell in cells if not cell.result(arguments.work).exists()]
    print(
        f"\n{len(results)} of {len(cells)} cells are finished; n is the number of seeds; "
        f"{arguments.work / 'table.json'} has the rows"
    )
    if missing:
        print(f"not run: {', '.join(missing)}")


def _speeds(arguments: argparse.Namespace) -> dict[str, float]:
    data = arguments.work / "data"
    networks: dict[str, Params] = {
        network: audit_params(arguments.images, network, side=arguments.side)
        for network, _ in table_arms(arguments).values()
    }
    identity = {
        "data": prepared_digest(DataPaths(root=data)),
        "seconds": arguments.seconds,
        "clock": "cpu",
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "few": arguments.few,
    }
    return measured_speeds(arguments.work / "plan.json", networks, data, identity)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.audit_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--images", type=Path, required=True, help="archive or folder of train/ and test/ by class")
    parser.add_argument(
        "--work", type=Path, default=Path(".work/audit_table"), help="folder of data, cells and results"
    )
    parser.add_argument(
        "--best",
        choices=[name for name in USES if name != "twice"],
        default="one",
        help="the use of the minutes that benchmarks.audit_minutes found best (default: one)",
    )
    parser.add_argument("--seconds", type=float, default=1200.0, help="core seconds of a cell's training")
    parser.add_argument("--noise-epochs", type=float, default=3.0, help="epochs of the networks that give wrong labels")
    parser.add_argument("--few", type=int, default=12_500, help="images of the row with fewer images (default: 12500)")
    parser.add_argument("--side", type=int, help="side of the images in pixels (default: that of presets/audit.yaml)")
    parser.add_argument("--resamples", type=int, default=1000, help="bootstrap resamples of a cell")
    parser.add_argument("--until", choices=_STEPS, default="cells", help="stop after this step (default: cells)")
    parser.add_argument("--summarize", action="store_true", help="print the table of finished cells; run nothing")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
