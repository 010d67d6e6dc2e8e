"""Simulated runs against the number of GPUs: throughput, efficiency, and time to train."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from viz.figures.palette import SERIES
from viz.figures.rendering import matplotlib_log_axis, matplotlib_style


@dataclass(frozen=True, kw_only=True)
class ScalingCurve:
    """Values at ascending numbers of GPUs; efficiency 0 to 1."""

    gpus: Sequence[int]
    images_per_second: Sequence[float]
    efficiency: Sequence[float]
    hours: Sequence[float]


def scaling_figure(weak: Mapping[str, ScalingCurve], strong: Mapping[str, ScalingCurve], *, title: str) -> Figure:
    """Four panels: throughput and efficiency of weak scaling; efficiency and time of strong scaling.

    Args:
        weak: way to communicate -> its curve.
        strong: global batch -> the curve of its fastest way.
        title: says that the figure is simulated.
    """
    with matplotlib_style():
        figure = Figure(figsize=(10.0, 7.0), layout="constrained")
        figure.suptitle(title, fontsize=11)
        ((throughput, efficiency), (strong_efficiency, hours)) = figure.subplots(2, 2)
        for panel, curves, attribute, unit, y_title in (
            (throughput, weak, "images_per_second", 1, "images/s, same local batch"),
            (efficiency, weak, "efficiency", 100, "efficiency (%), same local batch"),
            (strong_efficiency, strong, "efficiency", 100, "efficiency (%), same global batch"),
            (hours, strong, "hours", 1, "hours to train, same global batch"),
        ):
            _draw(panel, curves, attribute, unit, y_title)
        matplotlib_log_axis(throughput, "y", [value for curve in weak.values() for value in curve.images_per_second])
        matplotlib_log_axis(hours, "y", [value for curve in strong.values() for value in curve.hours])
        for panel in (efficiency, strong_efficiency):
            panel.set_ylim(0, 105)
        return figure


def _draw(panel: Any, curves: Mapping[str, ScalingCurve], attribute: str, unit: float, y_title: str) -> None:
    for index, (name, curve) in enumerate(curves.items()):
        values = [unit * value for value in getattr(curve, attribute)]
        style = ("-", "--", ":")[index // len(SERIES) % 3]
        panel.plot(
            curve.gpus, values, style, label=name, color=SERIES[index % len(SERIES)], marker="o", markersize=3
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    gpus = sorted({count for curve in curves.values() for count in curve.gpus})
    shown = gpus[:: 1 + len(gpus) // 9]
    panel.set_xticks(
        shown, [f"{count:,}" for count in shown], fontsize=8, rotation=30, ha="right", rotation_mode="anchor"
    )
    panel.minorticks_off()
    panel.set(xlabel="GPUs", ylabel=y_title)
    if curves:
        # "best" looks at every point, and warns on a busy machine that it does.
        panel.legend(fontsize=8, loc="upper left" if attribute == "images_per_second" else "lower left")
