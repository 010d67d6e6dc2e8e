"""How far off is the simulator? Efficiencies of settings to which nothing was fitted, in points.

Steps of a small network are timed on one rank and on two: over this machine's loopback interface at some batch and
bucket sizes, and between two network namespaces whose cable is slowed to some bandwidths, and then delayed (Linux, as
root; said where it cannot be). The constants of the link are fitted to some settings and predict the others. What a
rank computes without exchange is timed in each launch, until the slowest rank has done it, as a straight line through
two batch sizes. Steps of all batch and bucket sizes are taken in turn, in an order drawn anew in each, and count beside
the others of their turn, as the machine drifts. Efficiency is images/s over those of as many ranks of which each is
alone, at the largest batch of the same launch; a point is 1 %.
More ranks than cores measure the scheduler.

What is judged is the model of a step, `pipeline.simulator.simulate_step` with a ring, which `python -m pipeline
simulate` ships, and not that command's ways to constants. Here latency, bandwidth and what goes on beside the backward
pass are fitted to whole steps, and the backward pass may stand still while its only core sends; there one step is
scaled in proportion to its batch, latency and bandwidth stand in the machine's file or are fitted to all-reduces alone,
and a GPU sends without standing still.

Packets are delayed by a process (benchmarks/packet_relay.py) that takes a share of the cores; where delays vary, it has
the packets of the shortest one too, and all are at one bandwidth.

    python -m benchmarks.simulator_error --out docs/results/FOLDER
    python -m benchmarks.simulator_error --timings docs/results/FOLDER/timings.json    # judge them again
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.simulator_predictions import (
    RANKS,
    Cable,
    Jobs,
    MeasuredSetting,
    fit_constants,
    in_seconds,
    rows_of,
    starting_constants,
    typical,
    typical_seconds,
)
from benchmarks.simulator_timing import ALONE, WITHOUT, Timings, timings_of
from benchmarks.simulator_wording import AIM_POINTS, markdown
from benchmarks.two_hosts import Host, NoNamespaces, slow, two_hosts
from pipeline.artifacts.files import read_json, write_json, write_text

_EXPERIMENTS = ("this machine", "a slowed cable", "a delayed cable")
_BYTES_OF_A_MBIT = 1e6 / 8
_PORT = 29_501
_ENDS_WITHIN_S = 3600

Launches = Mapping[Cable | None, Timings]


class LaunchFailed(Exception):  # noqa: N818 - says what there is no measurement of
    """The ranks of a launch did not all end well."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18", help="a classifier of torchvision")
    parser.add_argument("--image-size", type=int, default=64, help="pixels")
    parser.add_argument("--local-batches", type=int, nargs="+", default=[16, 64], help="two or more")
    parser.add_argument("--held-out-batches", type=int, nargs="+", default=[32])
    parser.add_argument("--buckets-mib", type=int, nargs="+", default=[1, 25])
    parser.add_argument("--held-out-buckets-mib", type=int, nargs="+", default=[5])
    parser.add_argument(
        "--mbits", type=float, nargs="+", default=[400, 4000], help="Mbit/s that the cable is slowed to"
    )
    parser.add_argument("--held-out-mbits", type=float, nargs="+", default=[1000, 2000])
    parser.add_argument(
        "--delays-ms", type=float, nargs="+", default=[0, 8], help="of a packet in each direction, at --delayed-mbits"
    )
    parser.add_argument("--held-out-delays-ms", type=float, nargs="+", default=[3])
    parser.add_argument("--delayed-mbits", type=float, default=1000)
    parser.add_argument(
        "--experiments", nargs="+", choices=_EXPERIMENTS, default=list(_EXPERIMENTS), help="(default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of steps in their parts and of all-reduces")
    parser.add_argument("--turns", type=int, default=20, help="in each a step of every setting")
    parser.add_argument("--timings", type=Path, help="judge these of an earlier run, by its settings; measure nothing")
    parser.add_argument("--out", type=Path, default=Path(".work/simulator_error"), help="folder of the .json and .md")
    arguments = parser.parse_args(argv)
    if len(set(arguments.local_batches)) < 2:
        parser.error(f"--local-batches {arguments.local_batches}: a line needs two points; give two or more")
    for name in ("local_batches", "buckets_mib", "mbits", "delays_ms"):
        held_out = f"held_out_{name.removeprefix('local_')}"
        if both := set(getattr(arguments, name)) & set(getattr(arguments, held_out)):
            option = held_out.replace("_", "-")
            parser.error(f"--{option}: {min(both):g} is fitted to as well; give other values")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, fit, predict, write."""
    arguments = _arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    measured = read_json(arguments.timings) if arguments.timings else _measure(arguments)
    settings = argparse.Namespace(**measured["settings"])
    experiments: dict[str, Any] = {}
    missing: dict[str, str] = dict(measured["missing"])
    for name in settings.experiments:
        of_experiment = [launch for launch in measured["launches"] if launch["experiment"] == name]
        fitted, held_out = (
            {_cable(launch): timings_of(launch["timings"]) for launch in of_experiment if launch["held_out"] == out}
            for out in (False, True)
        )
        if name in missing:
            continue
        try:
            experiments[name] = judge(settings, fitted, held_out)
        except ValueError as error:
            missing[name] = str(error)
    common = {key: measured[key] for key in ("settings", "machine")}
    found = {**common, "missing": missing, "experiments": experiments}
    write_json(arguments.out / "simulator_error.json", found)
    write_text(arguments.out / "simulator_error.md", markdown(found))
    print(markdown(found))


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every launch, written to timings.json as soon as it has ended: each takes minutes."""
    machine = {"torch": torch.__version__, "cores": len(os.sched_getaffinity(0))}
    settings = {key: value for key, value in vars(arguments).items() if not isinstance(value, Path)}
    launches: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    measured = {"settings": settings, "machine": machine, "launches": launches, "missing": missing}
    for name, cables in zip(_EXPERIMENTS, _cables(arguments), strict=True):
        if name not in arguments.experiments:
            continue
        try:
            for held_out, of in zip((False, True), cables, strict=True):
                for cable in of:
                    timings = asdict(_measured(arguments, cable))
                    launches.append(
                        {"experiment": name, "cable": cable and asdict(cable), "held_out": held_out, "timings": timings}
                    )
                    write_json(arguments.out / "timings.json", measured)
        except (NoNamespaces, LaunchFailed) as reason:
            missing[name] = str(reason)
            write_json(arguments.out / "timings.json", measured)
    return measured


def _cable(launch: Mapping[str, Any]) -> Cable | None:
    return Cable(**launch["cable"]) if launch["cable"] else None


def _launch(arguments: argparse.Namespace, hosts: Sequence[Host] = ()) -> Timings:
    """One run of `simulator_timing` on two ranks, on this machine or with one rank on each host."""
    lists = {
        "local-batches": [*arguments.local_batches, *arguments.held_out_batches],
        "buckets-mib": [*arguments.buckets_mib, *arguments.held_out_buckets_mib],
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "timings.json"
        words = [
            "-m", "benchmarks.simulator_timing", "--network", arguments.network,
            f"--image-size={arguments.image_size}", f"--rounds={arguments.rounds}", f"--turns={arguments.turns}",
            *(word for name, values in lists.items() for word in (f"--{name}", *map(str, values))), f"--out={out}",
        ]  # fmt: skip
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        if hosts:
            join = [f"--nnodes={RANKS}", "--nproc-per-node=1", f"--master-addr={hosts[0].address}"]
            commands = [
                [*host.prefix, *torchrun, *join, f"--master-port={_PORT}", f"--node-rank={node}", *words]
                for node, host in enumerate(hosts)
            ]
        else:
            commands = [[*torchrun, "--standalone", f"--nproc-per-node={RANKS}", *words]]
        _run_together(commands, hosts[0].environ if hosts else {})
        return timings_of(read_json(out))


def _run_together(commands: Sequence[Sequence[str]], environ: Mapping[str, str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environ}
    running = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        codes = [process.wait(timeout=_ENDS_WITHIN_S) for process in running]
    except subprocess.TimeoutExpired:
        raise LaunchFailed(f"the ranks did not end within {_ENDS_WITHIN_S} s") from None
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                process.kill()
    if any(codes):
        raise LaunchFailed(f"a rank failed: exit codes {codes}")


def _cables(arguments: argparse.Namespace) -> list[tuple[list[Cable | None], list[Cable | None]]]:
    """Of each experiment what constants are fitted over, and what is held out; None is this machine without a cable."""

    def slowed(mbits: Sequence[float]) -> list[Cable | None]:
        return [Cable(_BYTES_OF_A_MBIT * mbit) for mbit in mbits]

    def delayed(delays_ms: Sequence[float]) -> list[Cable | None]:
        return [Cable(_BYTES_OF_A_MBIT * arguments.delayed_mbits, 1e-3 * delay_ms) for delay_ms in delays_ms]

    return [
        ([None], []),
        (slowed(arguments.mbits), slowed(arguments.held_out_mbits)),
        (delayed(arguments.delays_ms), delayed(arguments.held_out_delays_ms)),
    ]


def _measured(arguments: argparse.Namespace, cable: Cable | None) -> Timings:
    """Raises NoNamespaces where there can be no cable, and LaunchFailed."""
    if cable is None:
        return _launch(arguments)
    with two_hosts(cable.delay_seconds) as hosts:
        for host in hosts:
            slow(host, cable.bytes_per_second)
        return _launch(arguments, hosts)


def judge(arguments: argparse.Namespace, fitted: Launches, held_out: Launches) -> dict[str, Any]:
    """Constants of what is not held out, and all settings beside their predictions.

    Args:
        fitted, held_out: cable, None for this machine -> what was measured. Of those fitted, some batch and bucket
            sizes are held out too.
    """
    cells = [
        cell
        for launches in (fitted, held_out)
        for cable, timings in launches.items()
        for cell in _cells(arguments, cable, timings, new_cable=launches is held_out)
    ]
    start = starting_constants({cable: timings.all_reduces for cable, timings in fitted.items()})
    fit = fit_constants(cells, start)
    rows = rows_of(cells, fit.constants)
    return {"all_reduces_alone": asdict(start), "fit": asdict(fit), "rows": rows, "held_out": _summary(rows)}


def _cells(
    arguments: argparse.Namespace, cable: Cable | None, timings: Timings, *, new_cable: bool
) -> list[MeasuredSetting]:
    """Of one launch: of two ranks, and where there is no cable of one."""
    taken = typical_seconds(timings.steps, arguments.local_batches)
    jobs = {
        batch: typical([job for job in timings.jobs if job.local_batch == batch]) for batch in arguments.local_batches
    }
    of_one, of_both = (
        Jobs([in_seconds(job, taken[batch, way]) for batch, job in jobs.items()]) for way in (ALONE, WITHOUT)
    )
    largest = max(arguments.local_batches)
    cells = []
    for (batch, way), seconds in taken.items():
        if way == WITHOUT or (way == ALONE and cable):
            continue
        new_size = batch in arguments.held_out_batches or way in arguments.held_out_buckets_mib
        cells.append(
            MeasuredSetting(
                ranks=1 if way == ALONE else RANKS,
                local_batch=batch,
                bucket_mib=None if isinstance(way, str) else way,
                cable=cable,
                job=(of_one if way == ALONE else of_both).at(batch),
                seconds=seconds,
                reference=largest / taken[largest, ALONE],
                held_out="cable" if new_cable else "size" if new_size else "",
            )
        )
    return cells


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over what was held out, by why it is new; `all` of it too."""
    by_kind: dict[str, list[float]] = {}
    for row in rows:
        if row["held_out"]:
            kind = "one rank" if row["ranks"] == 1 else row["held_out"]
            for key in ("all", kind):
                by_kind.setdefault(key, []).append(abs(row["error_points"]))
    return {
        kind: {
            "settings": len(errors),
            "mean_error_points": float(np.mean(errors)),
            "largest_error_points": float(np.max(errors)),
            "within_aim": bool(max(errors) <= AIM_POINTS),
        }
        for kind, errors in by_kind.items()
    }


if __name__ == "__main__":
    main()
