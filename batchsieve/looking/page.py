"""One offline page of a `Look`: the suspects with pictures and neighbors, and the map of all images."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from plotly.io.json import to_json_plotly

from batchsieve.looking.result import Look, SmallPictures, asset, cards_of, template
from pipeline.figures.embeddings import RING, explorer_map
from pipeline.figures.rendering import PLOTLY_CONFIG, plotly_script
from pipeline.figures.style import Groups, class_color
from viz.export.page import content_security_policy, exported_rows

MAX_CARDS = 100
"""Suspects with their neighbors on a page."""

MAX_POINTS = 5_000
"""Images on the map of a page, each with a small picture of about 2 kB."""

MAX_DUPLICATES = 50
"""Pairs of near duplicates on a page with different labels, and with the same."""


def page_of(look: Look) -> str:
    """Return the page; equal results give equal text."""
    suspects = look.suspects()
    script, plotly = asset("look.js"), plotly_script()
    small = SmallPictures(look)
    classes, codes = np.unique(look.issues.label, return_inverse=True)
    return template("look.html").render(
        look=look,
        headline=look.headline[0].upper() + look.headline[1:],
        n_suspects=len(suspects),
        cards=cards_of(look, suspects[:MAX_CARDS], small),
        pairs=_pairs(look, suspects[:MAX_CARDS]),
        duplicates=[
            (same, len(pairs), _duplicates(look, pairs[:MAX_DUPLICATES], small))
            for same in (False, True)
            if len(pairs := look.duplicates(same_label=same))
        ],
        classes=[
            (str(name), class_color(code), int((codes == code).sum()), int((codes[suspects] == code).sum()))
            for code, name in enumerate(classes)
        ],
        n_points=min(len(look), MAX_POINTS),
        data=Markup(_json_in_html(_map(look, suspects, codes, list(map(str, classes)), small))),
        policy=content_security_policy(plotly, script),
        style=Markup(asset("look.css")),
        script=Markup(script),
        plotly=Markup(plotly),
    )


def _pairs(look: Look, rows: NDArray[np.int64]) -> list[tuple[str, str, int]]:
    """Return label, suggested label and number of the suspects, the most frequent first."""
    counts: dict[tuple[str, str], int] = {}
    for row in rows.tolist():
        pair = str(look.issues.label[row]), str(look.issues.suggested_label[row])
        counts[pair] = counts.get(pair, 0) + 1
    return [(*pair, count) for pair, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _duplicates(look: Look, pairs: NDArray[np.int64], small: SmallPictures) -> list[list[dict[str, str]]]:
    return [
        [{"picture": small[row], "label": str(look.issues.label[row]), "path": str(look.path[row])} for row in pair]
        for pair in pairs.tolist()
    ]


def _map(
    look: Look, suspects: NDArray[np.int64], codes: NDArray[np.int64], names: Sequence[str], small: SmallPictures
) -> dict[str, Any]:
    """Return the figure, and picture and texts of each of its images by row."""
    is_suspect = np.zeros(len(look), dtype=bool)
    is_suspect[suspects[:MAX_POINTS]] = True
    rows = exported_rows(~is_suspect, look.issues.score, MAX_POINTS)[::-1]
    colors = Groups(codes=codes, names=names, colors=[class_color(code) for code in range(len(names))])
    figure = explorer_map(look.coordinates, rows, colors, view="look")
    marked = np.flatnonzero(is_suspect)
    size = figure.data[0].marker.size
    figure.data[RING].update(
        # Lists: plotly would encode arrays, and the script reads these.
        x=look.coordinates[marked, 0].tolist(),
        y=look.coordinates[marked, 1].tolist(),
        marker={"symbol": "circle-open", "size": size + 6, "color": "#000000", "line": {"width": 1.5}},
    )
    texts = {
        str(row): {
            "x": float(look.coordinates[row, 0]),
            "y": float(look.coordinates[row, 1]),
            "picture": small[row],
            "path": str(look.path[row]),
            "label": str(look.issues.label[row]),
            "reason": str(look.issues.reason[row]),
        }
        for row in rows.tolist()
    }
    config = {**PLOTLY_CONFIG, "scrollZoom": True}
    return {"figure": json.loads(to_json_plotly(figure)), "config": config, "images": texts}


def _json_in_html(value: Mapping[str, Any]) -> str:
    """Return JSON that cannot end the element around it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
