"""Report of a simulation: a table and constants as text, a JSON file and a figure."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.artifacts.files import write_bytes, write_json
from pipeline.figures.batch_curves import ScalingCurve, scaling_figure
from pipeline.figures.rendering import svg
from pipeline.simulator.fitting import LinkFit
from pipeline.simulator.grid import SimulatedRun
from pipeline.simulator.job import Job
from pipeline.simulator.machine import MachineConfig
from pipeline.simulator.model import CommunicationModel
from pipeline.stats.formatting import aligned_lines

Constants = Mapping[str, tuple[object, str]]
"""Name -> value and origin: given, assumed or measured."""


def table(rows: Sequence[SimulatedRun]) -> Iterator[str]:
    """Yield a line per scaling, batch and number of GPUs: throughput of all ways, time and cost of the fastest."""
    ways = list(dict.fromkeys(row.way for row in rows))
    head = ["scaling", "batch", "GPUs", *(f"{way}: images/s" for way in ways), "fastest", "hours", "GPU hours", "cost"]
    lines = [head]
    groups: dict[tuple[str, int, int], list[SimulatedRun]] = {}
    for row in rows:
        groups.setdefault((row.scaling, row.global_batch if row.scaling == "strong" else 0, row.gpus), []).append(row)
    for (scaling, _, gpus), same in sorted(groups.items(), key=lambda item: (item[0][0] == "strong", item[0])):
        fastest = min(same, key=lambda row: row.hours)
        rates = [f"{row.images_per_second:,.0f} {row.efficiency:4.0%}" for row in same]
        cost = "" if fastest.cost is None else f"{fastest.cost:,.0f}"
        amounts = [f"{fastest.hours:,.3g}", f"{fastest.gpu_hours:,.0f}", cost]
        lines.append([scaling, f"{fastest.global_batch:,}", f"{gpus:,}", *rates, fastest.way, *amounts])
    if not any(line[-1] for line in lines[1:]):
        lines = [line[:-1] for line in lines]
    yield from aligned_lines(lines)


def undivided_lines(rows: Sequence[SimulatedRun], batch_sizes: Sequence[int]) -> Iterator[str]:
    """Yield a line for each batch of strong scaling that has no row."""
    simulated = {row.global_batch for row in rows if row.scaling == "strong"}
    for batch_size in sorted(set(batch_sizes) - simulated):
        yield f"no strong scaling of batch {batch_size:,}: it is not divisible by any of these numbers of GPUs"


def machine_constants(config: MachineConfig, origins: Mapping[str, str]) -> Constants:
    """Return the figures of a machine with their origins."""
    tree = config.model_dump()

    def value(key: str) -> object:
        link, _, inner = key.partition(".")
        return tree[link][inner] if inner else tree[link]

    return {key: (value(key), origin) for key, origin in origins.items()}


def job_constants(arguments: argparse.Namespace, job: Job, timed: str | None) -> Constants:
    """Return the constants of the network, the GPU, the coordinator and the training.

    Args:
        arguments: of the command line.
        job: of one worker.
        timed: name of the device that a step was timed on; None: its speed is given.
    """
    images_per_second = job.local_batch / (job.ready_seconds[-1] + job.optimizer_seconds)
    origin = "measured" if timed else "given"
    constants: dict[str, tuple[object, str]] = {
        "images/s of one GPU": (images_per_second, origin),
        "bytes of the gradients": (sum(job.layer_bytes), "given"),
        "times of forward and backward, and of each layer": (
            f"those of {timed}" if timed else "1 : 2, by multiplications",
            "measured" if timed else "assumed",
        ),
        "times at other local batches": ("in proportion", "assumed"),
        "images over all epochs": (arguments.examples, "given"),
    }
    if arguments.price_per_gpu_hour is not None:
        constants["price of a GPU for an hour"] = (arguments.price_per_gpu_hour, "given")
    if arguments.negotiation:
        for name, figure in zip(("cycle (ms)", "message (us)"), arguments.negotiation, strict=True):
            constants[f"negotiation, {name}"] = (figure, "given")
    return constants


def constant_lines(constants: Constants) -> Iterator[str]:
    """Yield a line for each origin."""
    for origin in ("measured", "given", "assumed"):
        named = [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, (value, of) in constants.items()
            if of == origin
        ]
        yield f"{origin}: {'; '.join(named) or 'nothing'}"


def write_results(
    arguments: argparse.Namespace,
    title: str,
    rows: Sequence[SimulatedRun],
    ways: Mapping[str, CommunicationModel],
    constants: Constants,
    fitted: LinkFit | None,
) -> None:
    """Write the JSON and the SVG file into `arguments.out`, and print their paths."""
    name = f"{arguments.machine.stem}.{arguments.network}"
    tree: dict[str, Any] = {
        "simulated": True,
        "title": title,
        "machine": str(arguments.machine),
        "network": arguments.network,
        "examples": arguments.examples,
        "ways": {name: asdict(way) for name, way in ways.items()},
        "constants": {key: {"value": value, "origin": origin} for key, (value, origin) in constants.items()},
        "fit": None if fitted is None else {"error": fitted.relative_error, "held_out_error": fitted.held_out_error},
        "rows": [row.to_dict() for row in rows],
    }
    write_json(arguments.out / f"{name}.json", tree)
    write_bytes(arguments.out / f"{name}.svg", svg(scaling_figure(*_curves(rows), title=title)))
    print(f"written: {arguments.out / name}.json and .svg")


def _curves(rows: Sequence[SimulatedRun]) -> tuple[dict[str, ScalingCurve], dict[str, ScalingCurve]]:
    """Return curves of weak scaling by way, and of strong scaling by global batch with the fastest way."""
    weak = {way: [row for row in rows if (row.scaling, row.way) == ("weak", way)] for way in {r.way: 0 for r in rows}}
    strong: dict[str, list[SimulatedRun]] = {}
    for batch in sorted({row.global_batch for row in rows if row.scaling == "strong"}):
        same = [row for row in rows if (row.scaling, row.global_batch) == ("strong", batch)]
        fastest = {n: min((r for r in same if r.gpus == n), key=lambda r: r.hours) for n in {r.gpus for r in same}}
        strong[f"batch {batch:,}"] = [fastest[n] for n in sorted(fastest)]
    weak_curves, strong_curves = ({name: _curve(of) for name, of in group.items()} for group in (weak, strong))
    return weak_curves, strong_curves


def _curve(rows: Sequence[SimulatedRun]) -> ScalingCurve:
    return ScalingCurve(
        gpus=[row.gpus for row in rows],
        images_per_second=[row.images_per_second for row in rows],
        efficiency=[row.efficiency for row in rows],
        hours=[row.hours for row in rows],
    )
