"""The page of a study that is running. It refreshes itself until the last run has ended."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

REFRESH_S = 5
"""Seconds between two refreshes."""

_WIDTH, _HEIGHT, _MARGIN = 640, 200, 44  # pixels of a curve

_STYLE = """
:root { color-scheme: light dark; --line: light-dark(#1b5e9b, #6cb8ea); --quiet: light-dark(#5c5c5c, #a5a5a0); }
body { max-width: 680px; margin: 0 auto; padding: 12px; font: 15px/1.4 system-ui, sans-serif; }
h1 { margin: 0 0 4px; font-size: 20px; }
h2 { margin: 16px 0 0; font-size: 15px; }
p { margin: 4px 0; overflow-wrap: anywhere; }
progress { width: 100%; height: 12px; accent-color: var(--line); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 12px; }
svg polyline { fill: none; stroke: var(--line); stroke-width: 2; }
svg circle { fill: var(--line); }
svg path { fill: none; stroke: var(--quiet); }
.quiet { color: var(--quiet); font-size: 13px; }
"""


@dataclass(frozen=True, kw_only=True)
class LiveState:
    """The progress of a study.

    Attributes:
        study: its name.
        run: description of the current run; empty before the first one.
        ended, runs: number of runs that have ended, and of all to train.
        left: the runs and the time left, as text; empty before the first run has ended.
        curves: title -> (step, value) in ascending order, of the current run and of the study.
        updated: time of this state.
    """

    study: str
    run: str
    ended: int
    runs: int
    left: str
    curves: Mapping[str, Sequence[tuple[int, float]]]
    updated: datetime


def live_page(state: LiveState) -> str:
    """Return the page as HTML that needs no other file and no script."""
    running = state.ended < state.runs
    left = state.left or f"{state.ended} of {state.runs} runs"
    lines = [
        f'<meta http-equiv="refresh" content="{REFRESH_S}">' if running else "",
        f"<title>{escape(state.study)}: {escape(left)}</title>",
        f"<style>{_STYLE}</style>",
        f"<h1>Study {escape(state.study)}</h1>",
        f'<progress value="{state.ended}" max="{state.runs}"></progress>',
        f"<p>{escape(left)}</p>",
        f"<p>Run {state.ended + 1} of {state.runs}: {escape(state.run)}</p>"
        if running
        else "<p>All runs have ended.</p>",
        *(_curve(title, finite) for title, points in state.curves.items() if (finite := _finite(points))),
        f'<p class="quiet">Updated {state.updated:%Y-%m-%d %H:%M:%S} UTC.</p>',
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">'
    )
    return "\n".join([head, *filter(None, lines), "</html>", ""])


def _finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, value) for step, value in points if math.isfinite(value)]


def _curve(title: str, points: Sequence[tuple[int, float]]) -> str:
    """Return a heading and a curve with its extremes on both axes."""
    (first, _), (last, latest) = points[0], points[-1]
    low, high = min(value for _, value in points), max(value for _, value in points)
    right, bottom = _WIDTH - _MARGIN / 4, _HEIGHT - _MARGIN / 2
    coordinates = [
        (
            _MARGIN + (right - _MARGIN) * (step - first) / max(1, last - first),
            bottom - (bottom - _MARGIN / 4) * ((value - low) / (high - low) if high > low else 0.5),
        )
        for step, value in points
    ]
    x, y = coordinates[-1]
    line = " ".join(f"{left:.1f},{top:.1f}" for left, top in coordinates)
    return (
        f"<h2>{escape(title)}: {latest:.4g}</h2>\n"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<path d="M{_MARGIN},{_MARGIN / 4} V{bottom} H{right}"/>'
        f'<polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        f'<text x="{_MARGIN - 4}" y="{_MARGIN / 4 + 8}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{_MARGIN - 4}" y="{bottom}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{_MARGIN}" y="{_HEIGHT - 6}">{first}</text>'
        f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">{last}</text></svg>'
    )
