"""Convert the report's summary to the lines of the figure of best warm-ups against the batch size."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.figures.batch_curves import BatchCurve, PublishedValue
from pipeline.figures.style import SERIES, LineKey, LineStyle, line_styles
from pipeline.stats.formatting import number

WARMUP_TITLE = "best warm-up (epochs)"

# The published network and data have no line. No arm is black.
_PUBLISHED = LineStyle(color=SERIES[-1], marker=("circle", "o"), dash=("solid", "-"))


def warmup_curves(laws: Sequence[Mapping[str, Any]]) -> list[BatchCurve]:
    """Return one curve for each of `warmup_laws`: the mean of the seeds' best, in epochs; intervals end at 0."""
    names = [name for name in ("learning_rate", "weight_decay") if len({law[name] for law in laws}) > 1]
    several = len({tuple(law["studies"]) for law in laws}) > 1
    keys = [_key(law, names, several=several) for law in laws]
    styles = line_styles(keys)
    return [_curve(law, key, styles[key]) for law, key in zip(laws, keys, strict=True)]


def published_warmups(points: Mapping[int, float], source: str) -> list[PublishedValue]:
    """Return the published values of one source, given as batch size -> best warm-up in epochs."""
    return [
        PublishedValue(style=_PUBLISHED, label=f"published: {source}", batch_size=size, value=epochs)
        for size, epochs in points.items()
    ]


def _key(law: Mapping[str, Any], names: Sequence[str], *, several: bool) -> LineKey:
    parts = [law["model"], *(f"{name.replace('_', ' ')} {number(law[name])}" for name in names)]
    return LineKey(law["arm"], ", ".join([*parts, *([f"of {law['studies'][0]} and its siblings"] if several else [])]))


def _curve(law: Mapping[str, Any], key: LineKey, style: LineStyle) -> BatchCurve:
    estimates = [best["by_seed"] for best in law["best"]]
    return BatchCurve(
        key=key,
        style=style,
        label=str(key),
        batch_sizes=[best["batch_size"] for best in law["best"]],
        values=[estimate["mean"] for estimate in estimates],
        low=[None if estimate["low"] is None else max(0.0, estimate["low"]) for estimate in estimates],
        high=[estimate["high"] for estimate in estimates],
        n=[estimate["n"] for estimate in estimates],
    )
