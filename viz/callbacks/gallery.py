"""The gallery next to the map: a sorted list of images in pages, and its CSV file."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import Dash, Input, Output, State, ctx, no_update

from pipeline.errors import InputError
from pipeline.stats.formatting import plural
from viz import components, layout
from viz.callbacks.embedding import (
    MAP_CONTROLS,
    MapControls,
    comparison_state,
    parse_comparison,
    parse_controls,
    require_generation,
)
from viz.data import Source
from viz.gallery import in_list, listed_rows
from viz.state import MapState, selection_csv

PAGE = 60
_FIRST_LIST = "dropped"

_EMPTY = {
    "dropped": "The filter drops no image with these settings.",
    "selection": "Nothing is selected. Choose the lasso or the box above the embedding and draw around points.",
    "hand": "There are no overrides yet.",
    "planted": "No label was changed on purpose.",
    "differ": "A and B drop the same images.",
    "a": "B drops all images that A drops.",
    "b": "A drops all images that B drops.",
    "both": "A and B drop no image in common.",
}
_FILTERED_OUT = "No image of this list passes the filters by class, score and search."


def list_after_selection(selected: Sequence[int], current: str, before: str | None) -> tuple[Any, str | None]:
    """Return the list to show after the selection has changed, and the list to return to when it is removed.

    Args:
        selected: rows.
        current: list shown.
        before: list shown before the selection; None if there was no selection.
    """
    if selected:
        return "selection", before if current == "selection" else current
    # Keys need images: do not stay at an empty list.
    return (before or _FIRST_LIST) if current == "selection" else no_update, None


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
    tiles = [components.tile(state, row) for row in on_page]
    return {
        "grid": tiles or components.empty(_why_empty(state, which, selection, other_state)),
        "place": f"{plural(len(rows), 'image')}, page {page + 1} of {last + 1}",
        "page": page,
        "previous": page == 0,
        "next": page == last,
    }


def _why_empty(state: MapState, which: str, selection: Sequence[int], other: MapState | None) -> str:
    """Return why no image of a list is shown."""
    if which in layout.COMPARING_LISTS and other is None:
        return "Two settings are compared in the view Compare."
    is_filtered_out = in_list(state, which, selection=selection, other=other).any()
    return _FILTERED_OUT if is_filtered_out else _EMPTY[which]


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
    # Browsers replace the slash in names of timm's networks.
    filename = f"{map_controls.network}-{which}.csv".replace("/", "-")
    return {"filename": filename, "content": content, "type": "text/csv"}


def register(app: Dash, source: Source) -> None:
    """Register the callbacks."""

    @app.callback(
        output={
            "grid": Output("grid", "children"),
            "place": Output("place", "children"),
            "page": Output("page-number", "data"),
            "previous": Output("previous", "disabled"),
            "next": Output("next", "disabled"),
        },
        inputs={
            "map_controls": tuple(Input(*control) for control in MAP_CONTROLS),
            "which": Input("list", "value"),
            "order": Input("sort", "value"),
            "_triggers": (Input("previous", "n_clicks"), Input("next", "n_clicks"), Input("map-edited", "data")),
            "selection": Input("selection", "data"),
            "comparison": (Input("view", "value"), Input("network-b", "value"), Input("settings-b", "data")),
            "page": State("page-number", "data"),
            "plotted": State("plotted", "data"),
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
        plotted: Any,
    ) -> Mapping[str, Any]:
        require_generation(source, map_controls[0], plotted)
        if comparison[0] == "review":
            # The gallery is hidden, and its components would slow each key; see assets/keys.js.
            return dict.fromkeys(("place", "page", "previous", "next"), no_update) | {"grid": None}
        new_page = {"previous": page - 1, "next": page + 1, "map-edited": page}.get(str(ctx.triggered_id), 0)
        other = parse_comparison(*comparison)
        return browse(
            source, parse_controls(map_controls), which, order, new_page, selection=selection["rows"], other=other
        )

    app.callback(
        Output("list", "value", allow_duplicate=True),
        Output("list-before", "data"),
        Input("selection", "data"),
        State("list", "value"),
        State("list-before", "data"),
        prevent_initial_call=True,
    )(lambda selection, current, before: list_after_selection(selection["rows"], current, before))

    @app.callback(
        output={
            "file": Output("download", "data"),
            "message": Output("saved", "children", allow_duplicate=True),
            "style": Output("saved", "className", allow_duplicate=True),
        },
        inputs={"_clicks": Input("csv", "n_clicks")},
        state={
            "map_controls": tuple(State(*control) for control in MAP_CONTROLS),
            "which": State("list", "value"),
            "order": State("sort", "value"),
            "selection": State("selection", "data"),
            "comparison": (State("view", "value"), State("network-b", "value"), State("settings-b", "data")),
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
