"""Measure the error of the simulator: predicted minus measured efficiency of held-out settings, in points.

Times steps of a small network on one rank and on two. Two ranks run over this machine's loopback interface at several
batch and bucket sizes, and between two network namespaces whose cable has several bandwidths, then several delays
(Linux, as root; otherwise the result says why not). The constants of the link are fitted to some settings and predict
the others. The computation of a rank without exchange is timed in each launch, until the slowest rank is done, and
interpolated as a line through two batch sizes. In each turn steps of all batch and bucket sizes run in a new random
order, and each is compared with the others of its turn, since the speed of the machine drifts. Efficiency is images/s
of R ranks over R times those of a rank alone, at the largest batch of the same launch; a point is 1 %. More ranks than
cores measure the scheduler.

The benchmark tests the model of a step, `pipeline.simulator.simulate_step` with a ring, as in `python -m pipeline
simulate`. It does not test how that command obtains its constants. Here latency, bandwidth and overlap with the
backward pass are fitted to whole steps, and the backward pass may wait while its only core sends. That command scales
one step in proportion to its batch, reads latency and bandwidth from the machine's file or fits them to all-reduces
alone, and assumes a GPU that sends without waiting.

A process that delays packets (benchmarks/packet_relay.py) uses a share of the cores. In the experiment with several
delays it relays the packets of all of them, the shortest included, at one bandwidth.

    python -m benchmarks.simulator_error --out docs/results/FOLDER
    python -m benchmarks.simulator_error --timings docs/results/FOLDER/timings.json    # evaluate them again
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


class LaunchFailed(Exception):  # noqa: N818 - names the reason for a missing measurement
    """A rank of a launch failed."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18", help="a classification network of torchvision")
    parser.add_argument("--image-size", type=int, default=64, help="pixels")
    parser.add_argument("--local-batches", type=int, nargs="+", default=[16, 64], help="two or more")
    parser.add_argument("--held-out-batches", type=int, nargs="+", default=[32])
    parser.add_argument("--buckets-mib", type=int, nargs="+", default=[1, 25])
    parser.add_argument("--held-out-buckets-mib", type=int, nargs="+", default=[5])
    parser.add_argument(
        "--mbits", type=float, nargs="+", default=[400, 4000], help="bandwidths of the cable, in Mbit/s"
    )
    parser.add_argument("--held-out-mbits", type=float, nargs="+", default=[1000, 2000])
    parser.add_argument(
        "--delays-ms",
        type=float,
        nargs="+",
        default=[0, 8],
        help="delay of a packet in each direction, at --delayed-mbits",
    )
    parser.add_argument("--held-out-delays-ms", type=float, nargs="+", default=[3])
    parser.add_argument("--delayed-mbits", type=float, default=1000)
    parser.add_argument(
        "--experiments", nargs="+", choices=_EXPERIMENTS, default=list(_EXPERIMENTS), help="(default: all)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all-reduces and of steps timed by part")
    parser.add_argument("--turns", type=int, default=20, help="turns; each has a step of every setting")
    parser.add_argument(
        "--timings", type=Path, help="timings.json of an earlier run: evaluate it with its settings, measure nothing"
    )
    parser.add_argument("--out", type=Path, default=Path(".work/simulator_error"), help="folder of the .json and .md")
    arguments = parser.parse_args(argv)
    if len(set(arguments.local_batches)) < 2:
        parser.error(f"--local-batches {arguments.local_batches}: a line needs two points; give two or more")
    for name in ("local_batches", "buckets_mib", "mbits", "delays_ms"):
        held_out = f"held_out_{name.removeprefix('local_')}"
        if both := set(getattr(arguments, name)) & set(getattr(arguments, held_out)):
            option = held_out.replace("_", "-")
            parser.error(f"--{option}: {min(both):g} is also used in the fit; give other values")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, fit, predict, and write the results."""
    arguments = _arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    measured = read_json(arguments.timings) if arguments.timings else _measure(arguments)
    settings = argparse.Namespace(**measured["settings"])
    experiments: dict[str, Any] = {}
    missing: dict[str, str] = dict(measured["missing"])
    for name in settings.experiments:
        launches = [launch for launch in measured["launches"] if launch["experiment"] == name]
        fitted, held_out = (
            {_cable(launch): timings_of(launch["timings"]) for launch in launches if launch["held_out"] == is_held_out}
            for is_held_out in (False, True)
        )
        if name in missing:
            continue
        try:
            experiments[name] = evaluate(settings, fitted, held_out)
        except ValueError as error:
            missing[name] = str(error)
    common = {key: measured[key] for key in ("settings", "machine")}
    results = {**common, "missing": missing, "experiments": experiments}
    write_json(arguments.out / "simulator_error.json", results)
    write_text(arguments.out / "simulator_error.md", markdown(results))
    print(markdown(results))


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run every launch. Write timings.json after each one, since a launch takes minutes."""
    machine = {"torch": torch.__version__, "cores": len(os.sched_getaffinity(0))}
    settings = {key: value for key, value in vars(arguments).items() if not isinstance(value, Path)}
    launches: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    measured = {"settings": settings, "machine": machine, "launches": launches, "missing": missing}
    for name, cables in zip(_EXPERIMENTS, _cables(arguments), strict=True):
        if name not in arguments.experiments:
            continue
        try:
            for held_out, group in zip((False, True), cables, strict=True):
                for cable in group:
                    timings = asdict(_measure_cable(arguments, cable))
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
    """Run `simulator_timing` on two ranks, on this machine or with one rank on each host."""
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
    """Return for each experiment the cables of the fit and the held-out ones; None is this machine without a cable."""

    def slowed(mbits: Sequence[float]) -> list[Cable | None]:
        return [Cable(_BYTES_OF_A_MBIT * mbit) for mbit in mbits]

    def delayed(delays_ms: Sequence[float]) -> list[Cable | None]:
        return [Cable(_BYTES_OF_A_MBIT * arguments.delayed_mbits, 1e-3 * delay_ms) for delay_ms in delays_ms]

    return [
        ([None], []),
        (slowed(arguments.mbits), slowed(arguments.held_out_mbits)),
        (delayed(arguments.delays_ms), delayed(arguments.held_out_delays_ms)),
    ]


def _measure_cable(arguments: argparse.Namespace, cable: Cable | None) -> Timings:
    """Run one launch over the cable.

    Raises:
        NoNamespaces: this machine cannot emulate a cable.
        LaunchFailed: a rank failed.
    """
    if cable is None:
        return _launch(arguments)
    with two_hosts(cable.delay_seconds) as hosts:
        for host in hosts:
            slow(host, cable.bytes_per_second)
        return _launch(arguments, hosts)


def evaluate(arguments: argparse.Namespace, fitted: Launches, held_out: Launches) -> dict[str, Any]:
    """Fit the constants, and compare all settings with their predictions.

    Args:
        fitted, held_out: cable, None for this machine -> timings. Some batch and bucket sizes of the fitted cables are
            also held out.

    Returns:
        all_reduces_alone, fit, rows (one per setting) and held_out (errors by kind).

    Raises:
        ValueError: the all-reduces do not determine latency and bandwidth.
    """
    measured = [
        setting
        for launches in (fitted, held_out)
        for cable, timings in launches.items()
        for setting in _measured_settings(arguments, cable, timings, new_cable=launches is held_out)
    ]
    start = starting_constants({cable: timings.all_reduces for cable, timings in fitted.items()})
    fit = fit_constants(measured, start)
    rows = rows_of(measured, fit.constants)
    return {"all_reduces_alone": asdict(start), "fit": asdict(fit), "rows": rows, "held_out": _summary(rows)}


def _measured_settings(
    arguments: argparse.Namespace, cable: Cable | None, timings: Timings, *, new_cable: bool
) -> list[MeasuredSetting]:
    """Return the settings of one launch: on two ranks, and without a cable also on one."""
    seconds_by_setting = typical_seconds(timings.steps, arguments.local_batches)
    jobs = {
        batch: typical([job for job in timings.jobs if job.local_batch == batch]) for batch in arguments.local_batches
    }
    jobs_of_one, jobs_of_both = (
        Jobs([in_seconds(job, seconds_by_setting[batch, way]) for batch, job in jobs.items()])
        for way in (ALONE, WITHOUT)
    )
    largest = max(arguments.local_batches)
    measured = []
    for (batch, way), seconds in seconds_by_setting.items():
        if way == WITHOUT or (way == ALONE and cable):
            continue
        new_size = batch in arguments.held_out_batches or way in arguments.held_out_buckets_mib
        measured.append(
            MeasuredSetting(
                ranks=1 if way == ALONE else RANKS,
                local_batch=batch,
                bucket_mib=None if isinstance(way, str) else way,
                cable=cable,
                job=(jobs_of_one if way == ALONE else jobs_of_both).at(batch),
                seconds=seconds,
                reference=largest / seconds_by_setting[largest, ALONE],
                held_out="cable" if new_cable else "size" if new_size else "",
            )
        )
    return measured


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the errors of the held-out settings by kind, and of `all` of them."""
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
