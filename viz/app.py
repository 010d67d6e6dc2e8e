"""The Dash app with its one route of its own, for pictures."""

import re
from collections.abc import Sequence
from typing import Any

from dash import Dash

from pipeline.errors import InputError
from viz import callbacks, layout
from viz.data import Source
from viz.figures.gallery import thumbnail

HOST = "127.0.0.1"
"""Nobody but this machine: the pictures may be private."""

# Addresses of pictures change with their content.
_CACHE = "private, max-age=86400, immutable"

# The browser itself refuses whatever is not from here. Dash has inline scripts; plotly's WebGL compiles its own.
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"


class _OfflineDash(Dash):
    def interpolate_index(self, *, config: str, **parts: Any) -> Any:  # type: ignore[override]  # Dash names them all
        # Where Dash's developer tools would look for newer versions of it.
        offline = re.sub(r'("dash_version_url":)"[^"]*"', r'\1""', config)
        return super().interpolate_index(config=offline, **parts)


def make_app(source: Source, networks: Sequence[str], *, min_samples: int) -> Dash:
    """The app, not yet listening. Everything it needs comes from this machine.

    Args:
        networks: those to choose from.
        min_samples: DBSCAN's, to begin with.
    """
    app = _OfflineDash("viz", title="batchsieve", update_title="", serve_locally=True, assets_folder="assets")
    # A page elsewhere that has its own name point here does not get through.
    app.server.config["TRUSTED_HOSTS"] = [HOST, "localhost"]
    app.layout = layout.page(networks, min_samples)
    callbacks.register(app, source)

    def picture(name: str) -> tuple[bytes | str, int, dict[str, str]]:
        plain = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
        # Integers only: no part of the address becomes part of a file name.
        number = re.fullmatch(r"([0-9]{1,18})\.png", name)
        try:
            image = source.image(int(number[1])) if number else None
        except InputError as error:
            return str(error), 404, plain
        if image is None:
            return "no such training image", 404, plain
        media_type, content = thumbnail(image)
        return content, 200, {"Content-Type": media_type, "Cache-Control": _CACHE}

    def restrict(response: Any) -> Any:
        response.headers["Content-Security-Policy"] = _POLICY
        return response

    app.server.after_request(restrict)
    # Every name below, as Dash answers whatever else there is with the page.
    app.server.add_url_rule("/thumbnail/<path:name>", view_func=picture)
    return app
