"""The view Review: the shown image, and the list of decisions."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dash import Dash, Input, Output, State, no_update

from pipeline.errors import InputError
from viz import components
from viz.callbacks.embedding import MAP_CONTROLS, MapControls, parse_controls, require_generation
from viz.data import Source
from viz.review import KNOWN_ROWS, decision_list, review_queue, review_view


def review(
    source: Source,
    map_controls: MapControls,
    which: str,
    order: str,
    focus: int | None,
    *,
    selection: Sequence[int] = (),
    before: Mapping[str, Any] | None = None,
    page: int = 0,
) -> dict[str, Any]:
    """Return the view, the decisions, and the rows for the keys; see assets/keys.js.

    Args:
        source: of the images.
        map_controls: of the map.
        which: a key of `layout.LISTS`.
        order: a key of `layout.SORTS`.
        focus: row of the chosen image.
        selection: rows selected on the map.
        before: `queue` of the last answer. If the decisions, the settings and the page are the same, the list is not
            sent.
        page: of the list of decisions, from 0.
    """
    try:
        # Before the decisions are read: if they change meanwhile, the next answer lists them again.
        edited, listed = source.overrides_stamp(), _decisions_digest(source, map_controls, page)
        state = map_controls.state(source)
    except InputError as error:
        return {"view": components.problem(str(error)), "decisions": None, "queue": None}
    queue = review_queue(state, which, order, focus, selection=selection)
    undecided = queue.undecided()
    rows = {
        "generation": state.points.generation,
        "images": state.points.images_stamp,
        "asked": focus,
        "row": queue.row,
        "window": queue.window(),
        "undecided": undecided,
        "complete": len(undecided) < KNOWN_ROWS,
        "listed": listed,
        "edited": edited,
    }
    # The list has up to `MAX_LISTED` images, which the browser would build again at each key.
    same = isinstance(before, Mapping) and before.get("listed") == listed
    return {
        "view": review_view(state, queue),
        "decisions": no_update if same else decision_list(state, page),
        "queue": rows,
    }


def _decisions_digest(source: Source, map_controls: MapControls, page: int) -> str:
    """Return a digest of what the list of decisions shows: the files, the settings and the page."""
    shown = [
        map_controls.network,
        source.decisions_stamp(source.points(map_controls.network)),
        map_controls.settings_json,
        page,
    ]
    return hashlib.blake2b(json.dumps(shown).encode(), digest_size=16).hexdigest()


def register(app: Dash, source: Source) -> None:
    """Register the callback. Its components are data: the browser renders them without Dash, see assets/keys.js."""

    @app.callback(
        output={
            "view": Output("review-parts", "data"),
            "decisions": Output("decision-parts", "data"),
            "queue": Output("queue", "data"),
        },
        inputs={
            "view": Input("view", "value"),
            "map_controls": tuple(Input(*control) for control in MAP_CONTROLS),
            "which": Input("list", "value"),
            "order": Input("sort", "value"),
            "focus": Input("review-focus", "data"),
            "selection": Input("selection", "data"),
            "_edited": Input("edited", "data"),
            "page": Input("decisions-page", "data"),
            "plotted": State("plotted", "data"),
            "before": State("queue", "data"),
        },
    )
    def _review(
        view: str,
        map_controls: Sequence[Any],
        which: str,
        order: str,
        focus: Any,
        selection: Any,
        _edited: str,
        page: int,
        plotted: Any,
        before: Any,
    ) -> dict[str, Any]:
        if view != "review":
            # An image of another network must not stay on the page.
            return {"view": None, "decisions": None, "queue": no_update if before is None else None}
        require_generation(source, map_controls[0], plotted)
        return review(
            source, parse_controls(map_controls), which, order, focus,
            selection=selection["rows"], before=before, page=page,
        )  # fmt: skip
