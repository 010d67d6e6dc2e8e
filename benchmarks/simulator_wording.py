"""Write the simulator's error as Markdown."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.simulator_predictions import Constants

AIM_POINTS = 5.0
_OVERLAPS = {"all": "all of it", "wire": "the wire's part", "nothing": "nothing"}
_KINDS = {
    "size": "new batch or bucket sizes over fitted cables",
    "cable": "new cables",
    "one rank": "new batch sizes of one rank alone",
}


def markdown(results: Mapping[str, Any]) -> str:
    """Return the Markdown of the settings, and for each experiment its errors, fit and table."""
    settings, machine = results["settings"], results["machine"]
    head = [
        "# Error of the simulator",
        "",
        f"Steps of {settings['network']}, {settings['image_size']} pixels; {machine['cores']} cores, one thread per",
        f"rank; medians of {settings['turns']} turns; torch {machine['torch']}.",
        "",
        "Efficiency: images/s of R ranks over R times those of a rank alone at the largest batch of the same launch.",
        "Points: predicted minus measured efficiency, in percent. Held out, by a new size or a new cable: no constant",
        "of the link was fitted to it. The computation of a rank without exchange is timed in each launch at the batch",
        "sizes that are not held out.",
        "",
        "`python -m pipeline simulate` has the same model of a step, with a ring, and other constants. Here they are",
        "fitted to whole steps, and a backward pass may wait while its core sends. `simulate` scales one step in",
        "proportion to its batch, takes latency and bandwidth from the machine's file or from all-reduces alone, and",
        "its GPUs send without waiting.",
        "",
    ]
    for name in settings["experiments"]:
        if name in results["missing"]:
            head += [f"## {_title(name)}", "", f"Not measured: {results['missing'][name]}.", ""]
        else:
            head += _section(name, results["experiments"][name])
    return "\n".join(head)


def _title(name: str) -> str:
    return name[0].upper() + name[1:]


def _section(name: str, experiment: Mapping[str, Any]) -> list[str]:
    summary = experiment["held_out"]
    verdict = [
        f"- {_KINDS.get(kind, 'all held-out settings')}: {errors['settings']} settings, error "
        f"{errors['mean_error_points']:.1f} points on average and {errors['largest_error_points']:.1f} at most; the "
        f"aim of {AIM_POINTS:g} is {'met' if errors['within_aim'] else '**missed**'}"
        for kind, errors in summary.items()
    ]
    head = (
        "| ranks | batch per rank | bucket, MiB | Mbit/s | delay, ms | efficiency | predicted | points | held out |",
        "|---|---|---|---|---|---|---|---|---|",
    )
    lines = [f"## {_title(name)}", "", *verdict, "", _fitted(experiment["fit"]), "", *head]
    return [*lines, *map(_line, experiment["rows"]), ""]


def _fitted(fit: Mapping[str, Any]) -> str:
    constants, spreads = Constants(**fit["constants"]), fit["standard_errors"]

    def formatted(name: str, scale: float) -> str:
        value = scale * getattr(constants, name)
        if name not in spreads:
            return f"{value:.3g} (assumed)"
        # JSON has no NaN.
        if spreads[name] is None or np.isnan(spreads[name]):
            return f"{value:.3g} (not determined by these steps)"
        return f"{value:.3g} ± {scale * spreads[name]:.2g}"

    others = ", ".join(f"{_OVERLAPS[overlap]} {error:.1%}" for overlap, error in fit["errors"].items())
    return (
        f"Fitted, with standard errors: latency of a message {formatted('latency_seconds', 1e6)} µs and "
        f"{formatted('message_delays', 1)} of the cable's delays; {formatted('host_seconds', 1e9)} ns per byte for the "
        f"hosts; {formatted('wire_share', 1)} bytes on the wire per byte sent. Overlaps with the backward pass: "
        f"{_OVERLAPS[constants.overlap]}. Error of the fitted steps by what overlaps: {others}."
    )


def _line(row: Mapping[str, Any]) -> str:
    mbit = "" if row["mbit_per_second"] is None else f"{row['mbit_per_second']:,.0f}"
    delay = "" if row["delay_ms"] is None else f"{row['delay_ms']:g}"
    values = [
        row["ranks"], row["local_batch"], row["bucket_mib"] or "", mbit, delay, f"{row['measured_efficiency']:.1f} %",
        f"{row['predicted_efficiency']:.1f} %", f"{row['error_points']:+.1f}", row["held_out"],
    ]  # fmt: skip
    return f"| {' | '.join(map(str, values))} |"
