"""The gallery next to the map: a sorted list of images in pages, and its CSV file."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, ctx, no_update
from numpy.typing import NDArray

from pipeline.errors import InputError
from viz import components
from viz.callbacks.embedding import MapControls, comparison_state, parse_comparison, parse_controls, require_generation
from viz.data import Source
from viz.state import MapState, selection_csv

PAGE = 60

_EMPTY = {
    "goes": "The filter drops no image with these settings.",
    "selection": "Nothing is selected. Choose the lasso or the box above the embedding and draw around points.",
    "shown": "No image passes the filters by class and score.",
    "hand": "There are no overrides yet.",
    "planted": "No label was changed on purpose.",
}


def listed_rows(
    state: MapState, which: str, order: str, *, selection: Sequence[int] = (), other: MapState | None = None
) -> NDArray[np.int64]:
    """Return the rows of a list, restricted to shown images.

    Args:
        state: of the map.
        which: a key of `layout.LISTS`; lists that compare are empty without `other`.
        order: a key of `layout.SORTS`.
        selection: rows selected on the map.
    """
    dropped = ~state.preview.keep
    dropped_b = np.zeros_like(dropped) if other is None else ~other.preview.keep
    chosen = np.zeros(len(dropped), dtype=np.bool_)
    match which:
        case "goes":
            chosen = dropped
        case "shown":
            chosen[:] = True
        case "selection":
            chosen[[row for row in selection if 0 <= row < len(dropped)]] = True
        case "hand":
            chosen[list(state.preview.overrides)] = True
        case "planted":
            chosen = state.points.planted
        case _ if other is not None:
            chosen = {"a": dropped & ~dropped_b, "b": dropped_b & ~dropped, "both": dropped & dropped_b}[which]
    rows = np.flatnonzero(chosen & state.shown)
    points = state.points
    keys = {
        "suspect": -state.preview.scores[rows],
        "trusted": state.preview.scores[rows],
        "class": points.labels[rows],
        "sure": -points.confidence[rows],
    }
    return rows[np.argsort(keys[order], kind="stable")]


def browse(
    source: Source,
    map_controls: MapControls,
    which: str,
    order: str,
    page: int,
    *,
    selection: Sequence[int] = (),
    other: MapControls | None = None,
) -> dict[str, Any]:
    """Return one page of the gallery and its position."""
    try:
        state = map_controls.state(source)
        other_state = None if other is None else comparison_state(state, other, source)
    except InputError as error:
        return {"grid": components.empty(str(error)), "place": "", "page": 0, "previous": True, "next": True}
    rows = listed_rows(state, which, order, selection=selection, other=other_state)
    last = max(0, (len(rows) - 1) // PAGE)
    page = min(max(0, page), last)
    on_page = rows[page * PAGE : (page + 1) * PAGE].tolist()
    nothing = _EMPTY.get(which, "No such image. Two settings are compared in the view Compare.")
    return {
        "grid": [components.tile(state, row) for row in on_page] or components.empty(nothing),
        "place": f"{len(rows):,} images, page {page + 1} of {last + 1}",
        "page": page,
        "previous": page == 0,
        "next": page == last,
    }


def as_csv(
    source: Source,
    map_controls: MapControls,
    which: str,
    order: str,
    *,
    selection: Sequence[int] = (),
    other: MapControls | None = None,
) -> dict[str, str]:
    """Return the full list as a CSV file.

    Raises:
        InputError: as `make_map_state`.
    """
    state = map_controls.state(source)
    other_state = None if other is None else comparison_state(state, other, source)
    rows = listed_rows(state, which, order, selection=selection, other=other_state)
    content = selection_csv(state.points, state.preview, rows.tolist())
    return {"filename": f"{map_controls.network}-{which}.csv", "content": content, "type": "text/csv"}


def register(app: Dash, source: Source) -> None:
    """Register the callbacks."""
    map_controls = (
        Input("network", "value"), Input("rule", "data"), Input("classes", "value"), Input("scores", "value"),
    )  # fmt: skip

    @app.callback(
        output={
            "grid": Output("grid", "children"),
            "place": Output("place", "children"),
            "page": Output("page-number", "data"),
            "previous": Output("previous", "disabled"),
            "next": Output("next", "disabled"),
        },
        inputs={
            "map_controls": map_controls,
            "which": Input("list", "value"),
            "order": Input("sort", "value"),
            "_triggers": (Input("previous", "n_clicks"), Input("next", "n_clicks"), Input("edited", "data")),
            "selection": Input("selection", "data"),
            "comparison": (Input("view", "value"), Input("network-b", "value"), Input("rule-b", "data")),
            "page": State("page-number", "data"),
            "drawn": State("drawn", "data"),
        },
    )
    def _browse(
        map_controls: Sequence[Any],
        which: str,
        order: str,
        _triggers: Any,
        selection: Any,
        comparison: Sequence[Any],
        page: int,
        drawn: Any,
    ) -> Mapping[str, Any]:
        require_generation(source, map_controls[0], drawn)
        new_page = {"previous": page - 1, "next": page + 1, "edited": page}.get(str(ctx.triggered_id), 0)
        other = parse_comparison(*comparison)
        return browse(
            source, parse_controls(map_controls), which, order, new_page, selection=selection["rows"], other=other
        )

    @app.callback(
        output={
            "file": Output("download", "data"),
            "message": Output("saved", "children", allow_duplicate=True),
            "style": Output("saved", "className", allow_duplicate=True),
        },
        inputs={"_clicks": Input("csv", "n_clicks")},
        state={
            "map_controls": tuple(State(part.component_id, part.component_property) for part in map_controls),
            "which": State("list", "value"),
            "order": State("sort", "value"),
            "selection": State("selection", "data"),
            "comparison": (State("view", "value"), State("network-b", "value"), State("rule-b", "data")),
        },
        prevent_initial_call=True,
    )
    def _save(
        _clicks: int, map_controls: Sequence[Any], which: str, order: str, selection: Any, comparison: Sequence[Any]
    ) -> dict[str, Any]:
        other = parse_comparison(*comparison)
        try:
            file = as_csv(source, parse_controls(map_controls), which, order, selection=selection["rows"], other=other)
        except InputError as error:
            return {"file": no_update, "message": f"No list to save: {error}", "style": "failed"}
        return {"file": file, "message": f"{file['filename']}: saved to the downloads of the browser.", "style": ""}
