"""The simulator's error in words and tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.simulator_predictions import Constants

AIM_POINTS = 5.0
_BESIDE = {"all": "all of it", "wire": "the wire's part", "nothing": "nothing"}
_KINDS = {
    "size": "new batch or bucket sizes over known cables",
    "cable": "new cables",
    "one rank": "new batch sizes of one rank alone",
}


def markdown(found: Mapping[str, Any]) -> str:
    """What was measured and how, and a table for each experiment."""
    settings, machine = found["settings"], found["machine"]
    head = [
        "# How far off the simulator is",
        "",
        f"Steps of {settings['network']}, {settings['image_size']} pixels; {machine['cores']} cores, a thread a rank;",
        f"medians of {settings['turns']} turns; torch {machine['torch']}.",
        "",
        "Efficiency: images/s over those of as many ranks of which each is alone, at the largest batch of the same",
        "launch. Points: predicted less measured efficiency, in percent. Held out, by a new size or a new cable: no",
        "constant of the link was fitted to it; what a rank computes without exchange is timed in each launch at the",
        "batch sizes that are not held out.",
        "",
        "Shared with `python -m pipeline simulate`: the model of a step, with a ring. Not shared: its constants. Here",
        "they are fitted to whole steps, and a backward pass may stand still while its core sends; `simulate` scales",
        "one step in proportion to its batch, takes latency and bandwidth from the machine's file or from all-reduces",
        "alone, and its GPUs send without standing still.",
        "",
    ]
    for name in settings["experiments"]:
        if name in found["missing"]:
            head += [f"## {_title(name)}", "", f"Not measured: {found['missing'][name]}.", ""]
        else:
            head += _section(name, found["experiments"][name])
    return "\n".join(head)


def _title(name: str) -> str:
    return name[0].upper() + name[1:]


def _section(name: str, found: Mapping[str, Any]) -> list[str]:
    summary = found["held_out"]
    verdict = [
        f"- {_KINDS.get(kind, 'all that was held out')}: {of['settings']} settings, off by "
        f"{of['mean_error_points']:.1f} points in the mean and {of['largest_error_points']:.1f} at most; the aim of "
        f"{AIM_POINTS:g} is {'met' if of['within_aim'] else '**missed**'}"
        for kind, of in summary.items()
    ]
    head = (
        "| ranks | batch a rank | bucket, MiB | Mbit/s | delay, ms | efficiency | predicted | points | held out |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    lines = [f"## {_title(name)}", "", *verdict, "", _fitted(found["fit"]), "", *head]
    return [*lines, *map(_line, found["rows"]), ""]


def _fitted(fit: Mapping[str, Any]) -> str:
    constants, spreads = Constants(**fit["constants"]), fit["standard_errors"]

    def said(name: str, scale: float) -> str:
        value = scale * getattr(constants, name)
        if name not in spreads:
            return f"{value:.3g} (assumed)"
        # JSON has no NaN.
        if spreads[name] is None or np.isnan(spreads[name]):
            return f"{value:.3g} (not determined by these steps)"
        return f"{value:.3g} ± {scale * spreads[name]:.2g}"

    others = ", ".join(f"{_BESIDE[beside]} {error:.1%}" for beside, error in fit["errors"].items())
    return (
        f"Fitted, with standard errors: latency of a message {said('latency_seconds', 1e6)} µs and "
        f"{said('message_delays', 1)} of the cable's delays; {said('host_seconds', 1e9)} ns a byte for the hosts; "
        f"{said('wire_share', 1)} bytes on the wire for each. Beside the backward pass goes "
        f"{_BESIDE[constants.beside]}; off the fitted steps by, with each that could: {others}."
    )


def _line(row: Mapping[str, Any]) -> str:
    mbit = "" if row["mbit_per_second"] is None else f"{row['mbit_per_second']:,.0f}"
    delay = "" if row["delay_ms"] is None else f"{row['delay_ms']:g}"
    words = [
        row["ranks"], row["local_batch"], row["bucket_mib"] or "", mbit, delay, f"{row['measured_efficiency']:.1f} %",
        f"{row['predicted_efficiency']:.1f} %", f"{row['error_points']:+.1f}", row["held_out"],
    ]  # fmt: skip
    return f"| {' | '.join(map(str, words))} |"
