"""A small chart without axes, for one row of a list: lines against the batch size as inline SVG."""

import math
from collections.abc import Sequence
from html import escape

from pipeline.figures.batch_curves import BatchCurve
from pipeline.stats.formatting import number

_WIDTH, _HEIGHT, _ROOM = 120, 30, 4  # pixels
_RADIUS = 2


def sparkline(curves: Sequence[BatchCurve], *, unit: str) -> str:
    """Return an `<svg>` of 120 x 30 pixels: values over a logarithmic axis of batch sizes, by the curves' colors.

    The lowest and the highest value are at its edges, so that two charts do not compare in height. Its title, for the
    pointer and for screen readers, has all values. Empty without a curve.

    Args:
        unit: of the values, after the last of each curve.
    """
    if not curves:
        return ""
    sizes = [math.log2(size) for curve in curves for size in curve.batch_sizes]
    values = [value for curve in curves for value in curve.values]
    parts = []
    for curve in curves:
        places = [
            (_place(math.log2(size), sizes, _WIDTH), _HEIGHT - _place(value, values, _HEIGHT))
            for size, value in zip(curve.batch_sizes, curve.values, strict=True)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{curve.style.color}" stroke-width="1.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="{curve.style.color}"/>' for x, y in places]
    title = f"<title>{escape('; '.join(_words(curve, unit) for curve in curves))}</title>"
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg {size} role="img">{title}{"".join(parts)}</svg>'


def _place(value: float, values: Sequence[float], length: int) -> float:
    """Return where `value` is between the ends of `values`, in pixels; the middle where all are equal."""
    low, high = min(values), max(values)
    share = 0.5 if low == high else (value - low) / (high - low)
    return _ROOM + share * (length - 2 * _ROOM)


def _words(curve: BatchCurve, unit: str) -> str:
    points = zip(curve.batch_sizes, curve.values, strict=True)
    return f"{curve.label}: {', '.join(f'{number(value)} at {size:,}' for size, value in points)} {unit}".rstrip()
