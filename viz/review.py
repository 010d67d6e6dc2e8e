"""Review: one image of a list at a time, how many are decided, and the decisions so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import html
from numpy.typing import NDArray

from viz import components
from viz.gallery import listed_rows, sort_rows
from viz.state import MapState

KNOWN_ROWS = 500
"""Number of images before and after the shown one that the browser knows, so that keys need not wait for the server."""

MAX_LISTED = 200
"""Number of decisions on one page of their list."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReviewQueue:
    """Images to review, in order.

    Attributes:
        rows: (n,) rows.
        decided: (n,) whether the image has an override.
        position: of the shown image; None if there are no images.
    """

    rows: NDArray[np.int64]
    decided: NDArray[np.bool_]
    position: int | None

    @property
    def row(self) -> int | None:
        """Row of the shown image."""
        return None if self.position is None else int(self.rows[self.position])

    def undecided(self) -> list[int]:
        """Return rows without a decision from the shown one on, then those before it; at most `KNOWN_ROWS`."""
        if self.position is None:
            return []
        order = np.roll(np.arange(len(self.rows)), -self.position)
        found: list[int] = self.rows[order[~self.decided[order]]][:KNOWN_ROWS].tolist()
        return found

    def window(self) -> list[int]:
        """Return the rows around the shown one, at most `KNOWN_ROWS` on each side."""
        at = self.position or 0
        rows: list[int] = self.rows[max(0, at - KNOWN_ROWS) : at + KNOWN_ROWS + 1].tolist()
        return rows


def review_queue(
    state: MapState,
    which: str,
    order: str,
    focus: int | None,
    *,
    selection: Sequence[int] = (),
) -> ReviewQueue:
    """Return the images of a list and the one to show: `focus`, or the first without a decision.

    The list `dropped` has what the settings drop without overrides, so that a decision removes no image from it.

    Args:
        state: of the map.
        which: a key of `layout.LISTS`.
        order: a key of `layout.SORTS`.
        focus: row of the chosen image.
        selection: rows selected on the map.
    """
    if which == "dropped":
        rows = sort_rows(state, np.flatnonzero(state.preview.dropped_by_filter & state.shown), order)
    else:
        rows = listed_rows(state, which, order, selection=selection)
    decided = np.isin(rows, list(state.preview.overrides))
    if not len(rows):
        return ReviewQueue(rows=rows, decided=decided, position=None)
    at = np.flatnonzero(rows == focus)
    # `argmin` finds the first without a decision, or the first of all.
    return ReviewQueue(rows=rows, decided=decided, position=int(at[0]) if len(at) else int(decided.argmin()))


def review_view(state: MapState, queue: ReviewQueue) -> list[Any]:
    """Return the progress, the shown image in large, its text, and its nearest neighbors with their labels."""
    row, n_decided, n = queue.row, int(queue.decided.sum()), len(queue.rows)
    progress = html.Div(
        [html.Progress(value=str(n_decided), max=str(max(1, n))), html.Span(f"{n_decided:,} of {n:,} reviewed")],
        className="progress",
    )
    if row is None:
        return [progress, components.empty("This list has no image. Choose another one on the right.")]
    assert queue.position is not None
    points = state.points
    outcome = "kept" if state.preview.keep[row] else "dropped"
    neighbors = [components.tile(state, neighbor) for neighbor in points.neighbors[row].tolist()]
    return [
        progress,
        html.Div(
            [
                components.picture(points, row),
                html.Div(
                    [
                        html.P(f"image {queue.position + 1:,} of {n:,}", className="hint"),
                        *components.point_lines(state, row),
                        html.P(points.paths[row].as_py(), className="path"),
                    ]
                ),
            ],
            className=f"large {outcome}",
            **components.data_attributes(points, row),
        ),
        html.H2("Nearest by features, with their labels"),
        html.Div(neighbors, className="tiles"),
    ]


def decision_list(state: MapState, page: int = 0) -> list[Any]:
    """Return one page of the overrides, the newest first, each with a button that undoes it.

    Args:
        state: of the map.
        page: 0 has the newest. The first or the last page if it does not exist.
    """
    overrides = state.preview.overrides
    newest = sorted(overrides.items(), key=lambda item: (item[1].timestamp, item[1].line), reverse=True)
    last = max(0, (len(newest) - 1) // MAX_LISTED)
    page = min(max(0, page), last)
    return [
        html.H2(f"Decisions: {len(newest):,}"),
        *([_pages(page, last)] if last else []),
        *(_decision(state, row) for row, _ in newest[page * MAX_LISTED : (page + 1) * MAX_LISTED]),
    ]


def _pages(page: int, last: int) -> html.Div:
    """Return the buttons that show newer and older decisions; see assets/page.js."""

    def button(text: str, title: str, to: int) -> html.Button:
        # An attribute of a button that is absent, or disables it whatever its value.
        attributes: dict[str, Any] = {"data-page": str(to)} | ({} if 0 <= to <= last else {"disabled": True})
        return html.Button(text, className="turn", title=title, **attributes)

    newer, older = button("◀", "newer decisions", page - 1), button("▶", "older decisions", page + 1)
    return html.Div([newer, html.Span(f"page {page + 1:,} of {last + 1:,}"), older], className="buttons")


def _decision(state: MapState, row: int) -> html.Div:
    override = state.preview.overrides[row]
    attributes = components.data_attributes(state.points, row)
    path = html.Div(state.points.paths[row].as_py(), className="path")
    note = [html.Div(html.Q(override.note))] if override.note else []
    return html.Div(
        [
            components.tile(state, row),
            html.Div([html.Strong(override.action), path, *note]),
            html.Button("Undo", className="undo-one", title="undo this decision", **attributes),
        ],
        className="decision",
    )
