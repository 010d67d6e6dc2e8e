"""How far off is the simulator? Efficiencies of settings to which nothing was fitted, in points.

Steps of a small network are timed on one rank and on two: over this machine's loopback interface at some batch and
bucket sizes, and between two network namespaces whose cable is slowed to some bandwidths, and then delayed (Linux, as
root; said where it cannot be). The constants of the link are fitted to some settings and predict the others. Efficiency
is images/s over those of as many ranks of which each is alone, at the largest batch. More ranks than cores measure the
scheduler.

What is judged is the model of a step, `pipeline.costmodel.simulate_step` with a ring, which `python -m pipeline
simulate` ships, and not that command's ways to constants. Here a rank's times are straight lines through two measured
batch sizes, latency, bandwidth and what goes on beside the backward pass are fitted to whole steps, and the backward
pass may stand still while its only core sends; there one step is scaled in proportion to its batch, latency and
bandwidth stand in the machine's file or are fitted to all-reduces alone, and a GPU sends without standing still.

Packets are delayed by a process (benchmarks/packet_relay.py) that takes a share of the cores; where delays vary, it has
the packets of the shortest one too, and all are at one bandwidth.

    python -m benchmarks.simulator_error --out docs/results/FOLDER
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
    Cell,
    Constants,
    Jobs,
    fit_constants,
    rows_of,
    seconds_of,
    starting_constants,
    typical,
)
from benchmarks.simulator_timing import Timings, read_timings
from benchmarks.two_hosts import Host, NoNamespaces, slow, two_hosts
from pipeline.artifacts.atomic import write_text
from pipeline.artifacts.json_file import write_json
from pipeline.costmodel import Job

AIM_POINTS = 5.0
_BESIDE = {"all": "all of it", "wire": "the wire's part", "nothing": "nothing"}
_EXPERIMENTS = ("this machine", "a slowed cable", "a delayed cable")
_BYTES_OF_A_MBIT = 1e6 / 8
_PORT = 29_501
_SHARED = (
    "Shared with `python -m pipeline simulate`: the model of a step, with a ring. Not shared: its constants. Here they",
    "are fitted to whole steps, a rank's times are straight lines through measured batch sizes, and its backward pass",
    "may stand still while its core sends; `simulate` scales one step in proportion to its batch, takes latency and",
    "bandwidth from the machine's file or from all-reduces alone, and its GPUs send without standing still.",
    "",
)
_ENDS_WITHIN_S = 900

Launches = Mapping[Cable | None, Timings]


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
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed in each round, for each setting")
    parser.add_argument("--out", type=Path, default=Path(".work/simulator_error"), help="folder of the .json and .md")
    arguments = parser.parse_args(argv)
    if len(set(arguments.local_batches)) < 2:
        parser.error(f"--local-batches {arguments.local_batches}: a line needs two points; give two or more")
    return arguments


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, fit, predict, write."""
    arguments = _arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    experiments: dict[str, Any] = {}
    raw: list[dict[str, Any]] = []
    for name, cables in zip(_EXPERIMENTS, _cables(arguments), strict=True):
        if name not in arguments.experiments:
            continue
        try:
            fitted, held_out = ({cable: _measured(arguments, cable) for cable in of} for of in cables)
        except NoNamespaces as reason:
            print(f"without {name}: {reason}")
            continue
        for cable, timings in {**fitted, **held_out}.items():
            raw.append({"experiment": name, "cable": cable and asdict(cable), "timings": asdict(timings)})
        write_json(arguments.out / "timings.json", raw)
        experiments[name] = judge(arguments, fitted, held_out)
        _write(arguments, experiments)
    print(markdown(experiments))


def _write(arguments: argparse.Namespace, experiments: Mapping[str, Any]) -> None:
    """What there is so far: each experiment takes minutes."""
    machine = {"torch": torch.__version__, "cores": len(os.sched_getaffinity(0))}
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    write_json(arguments.out / "simulator_error.json", {"settings": settings, **machine, "experiments": experiments})
    write_text(arguments.out / "simulator_error.md", markdown(experiments))


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
            f"--image-size={arguments.image_size}", f"--rounds={arguments.rounds}", f"--steps={arguments.steps}",
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
        return read_timings(out)


def _run_together(commands: Sequence[Sequence[str]], environ: Mapping[str, str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environ}
    running = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        codes = [process.wait(timeout=_ENDS_WITHIN_S) for process in running]
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                process.kill()
    if any(codes):
        sys.exit(f"a rank failed: exit codes {codes}")


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
    """Raises NoNamespaces where there can be no cable."""
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
    jobs = {
        1: _jobs(arguments, [job for timings in fitted.values() for job in timings.alone]),
        RANKS: _jobs(arguments, [job for timings in fitted.values() for job in timings.jobs]),
    }
    cells = [
        cell
        for launches in (fitted, held_out)
        for cable, timings in launches.items()
        for cell in _cells(arguments, cable, timings, held_out=launches is held_out)
    ]
    start = starting_constants({cable: timings.all_reduces for cable, timings in fitted.items()})
    constants = fit_constants(cells, jobs[RANKS], start)
    reference = float(np.median([_reference(arguments, timings) for timings in fitted.values()]))
    rows = rows_of(cells, jobs, constants, reference)
    return {"all_reduces_alone": asdict(start), "constants": asdict(constants), "rows": rows, **_summary(rows)}


def _jobs(arguments: argparse.Namespace, measured: Sequence[Job]) -> Jobs:
    return Jobs([job for job in measured if job.local_batch in arguments.local_batches])


def _reference(arguments: argparse.Namespace, timings: Timings) -> float:
    """Images/s of a rank alone at the largest batch."""
    largest = max(arguments.local_batches)
    middle = typical([job for job in timings.alone if job.local_batch == largest])
    return float(largest / seconds_of(middle))


def _cells(arguments: argparse.Namespace, cable: Cable | None, timings: Timings, *, held_out: bool) -> list[Cell]:
    """Of one launch: of two ranks, and where there is no cable of one."""
    common: dict[str, Any] = {"cable": cable, "reference": _reference(arguments, timings)}
    batches = {*arguments.local_batches, *arguments.held_out_batches} if cable is None else ()
    alone = [
        Cell(
            ranks=1,
            local_batch=batch,
            bucket_mib=None,
            seconds=seconds_of(typical([job for job in timings.alone if job.local_batch == batch])),
            held_out=batch in arguments.held_out_batches,
            **common,
        )
        for batch in sorted(batches)
    ]
    together = [
        Cell(
            ranks=RANKS,
            local_batch=step.local_batch,
            bucket_mib=step.bucket_mib,
            seconds=step.seconds,
            held_out=held_out
            or step.local_batch in arguments.held_out_batches
            or step.bucket_mib in arguments.held_out_buckets_mib,
            **common,
        )
        for step in timings.steps
    ]
    return alone + together


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over what was held out."""
    errors = np.abs([row["error_points"] for row in rows if row["held_out"]])
    return {
        "held_out": len(errors),
        "mean_error_points": float(errors.mean()),
        "largest_error_points": float(errors.max()),
        "within_aim": bool((errors <= AIM_POINTS).all()),
    }


def markdown(experiments: Mapping[str, Mapping[str, Any]]) -> str:
    """A table for each experiment, after what of `simulate` is in it."""
    return "\n".join([*_SHARED, *(line for name, found in experiments.items() for line in _section(name, found))])


def _section(name: str, found: Mapping[str, Any]) -> list[str]:
    constants = Constants(**found["constants"])
    verdict = (
        f"Held out: {found['held_out']} settings, off by {found['mean_error_points']:.1f} points in the mean and "
        f"{found['largest_error_points']:.1f} at most; the aim is {AIM_POINTS:g}: "
        f"{'met' if found['within_aim'] else '**missed**'}."
    )
    fitted = (
        f"Fitted: {1e6 * constants.latency_seconds:.3g} µs and {constants.message_delays:.3g} of the cable's delays a "
        f"message, {1e9 * constants.host_seconds:.3g} ns a byte for the hosts, {constants.wire_share:.3g} bytes on the "
        f"wire for each; beside the backward pass goes {_BESIDE[constants.beside]}; {constants.error:.1%} off the "
        "fitted steps."
    )
    head = (
        "| ranks | batch a rank | bucket, MiB | Mbit/s | delay, ms | efficiency | predicted | points | held out |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    lines = [f"## {name[0].upper()}{name[1:]}", "", verdict, "", fitted, "", *head]
    return [*lines, *map(_line, found["rows"]), ""]


def _line(row: Mapping[str, Any]) -> str:
    mbit = "" if row["mbit_per_second"] is None else f"{row['mbit_per_second']:,.0f}"
    delay = "" if row["delay_ms"] is None else f"{row['delay_ms']:g}"
    words = [
        row["ranks"], row["local_batch"], row["bucket_mib"] or "", mbit, delay, f"{row['measured_efficiency']:.1f} %",
        f"{row['predicted_efficiency']:.1f} %", f"{row['error_points']:+.1f}", "yes" if row["held_out"] else "",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, words))} |"


if __name__ == "__main__":
    main()
