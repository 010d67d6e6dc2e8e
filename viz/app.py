"""The Dash app and its route for thumbnails."""

import base64
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dash import Dash, Input, html
from dash.exceptions import DependencyException
from flask import request

from pipeline.errors import InputError
from pipeline.figures.palette import DROPPED, KEPT
from pipeline.figures.rendering import thumbnail
from viz import callbacks, components, layout
from viz.callbacks import training
from viz.callbacks.overrides import current_points
from viz.callbacks.training import read_params, training_page
from viz.data import Source
from viz.drawings import coordinate_bytes
from viz.security import protect

# URLs of images and coordinates change with their content.
_CACHE = "private, max-age=86400, immutable"
_TEXT_HEADERS = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
_ICON = f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">
<circle cx="5" cy="5" r="4" fill="{KEPT}"/><circle cx="11" cy="11" r="4" fill="{DROPPED}"/>
</svg>"""
# Browsers ask for an icon again whenever the address changes, as at each key that chooses an image, but not for one in
# the page itself.
_ICON_LINK = f'<link rel="icon" href="data:image/svg+xml;base64,{base64.b64encode(_ICON.encode()).decode()}">'


class _OfflineDash(Dash):
    def interpolate_index(self, *, config: str, **components: Any) -> Any:  # type: ignore[override]  # Dash lists them all
        # Dash's developer tools would look for newer versions at this URL.
        offline = re.sub(r'("dash_version_url":)"[^"]*"', r'\1""', config)
        return super().interpolate_index(config=offline, **{**components, "favicon": _ICON_LINK})


def make_app(
    source: Source,
    *,
    params_file: Path,
    token: str | None = None,
    on_selection: Callable[[str | None, Sequence[int]], None] | None = None,
) -> Dash:
    """Return the app, not yet listening. It loads all files from this machine.

    Args:
        source: data of the app.
        params_file: has the networks and studies; the dialog writes the chosen threshold to it.
        token: see `security.protect`.
        on_selection: receives `Points.generation` and the selected rows whenever the selection changes.
    """
    app = _OfflineDash("viz", title="batchsieve", update_title="", serve_locally=True, assets_folder="assets")
    protect(app.server, token=token, callbacks=app.callback_map)
    # Dash raises it for files that it does not serve.
    app.server.register_error_handler(DependencyException, lambda _: ("no such file", 404))
    # Built on each load, as the files may have changed.
    app.layout = lambda: _page(source, params_file)
    callbacks.register(app, source, params_file)
    training.register(app, source.data, params_file)

    if on_selection is not None:
        app.callback(Input("selection", "data"), prevent_initial_call=True)(
            lambda selection: on_selection(selection["generation"], selection["rows"])
        )

    def serve_thumbnail(name: str) -> tuple[bytes | str, int, dict[str, str]]:
        # Integers only, so that no part of the URL becomes part of a file name.
        number = re.fullmatch(r"([0-9]{1,18})\.png", name)
        try:
            stamp = request.query_string.decode(errors="replace") or None
            image = source.image(int(number[1]), stamp) if number else None
        except InputError as error:
            return str(error), 404, _TEXT_HEADERS
        if image is None:
            return "no such training image", 404, _TEXT_HEADERS
        media_type, content = thumbnail(image)
        return content, 200, {"Content-Type": media_type, "Cache-Control": _CACHE}

    def serve_coordinates() -> tuple[bytes | str, int, dict[str, str]]:
        try:
            points = current_points(source, request.args.get("generation"))
        except InputError as error:
            return str(error), 404, _TEXT_HEADERS
        if points is None:
            return "the files have been replaced; reload the page", 404, _TEXT_HEADERS
        return coordinate_bytes(points), 200, {"Content-Type": "application/octet-stream", "Cache-Control": _CACHE}

    app.server.add_url_rule("/coordinates", view_func=serve_coordinates)
    # All names below /thumbnail, as Dash answers any other URL with the page.
    app.server.add_url_rule("/thumbnail/<path:name>", view_func=serve_thumbnail)
    return app


def _page(source: Source, params_file: Path) -> html.Div:
    try:
        params = read_params(params_file, source.data)
    except InputError as error:
        return components.problem(str(error))
    training_view = training_page(source.data, params)
    return layout.page(params.networks, source.classes(), training_view, edited=source.overrides_stamp())
