"""Exported page: one self-contained HTML file with the embedding, the images and their columns as bytes."""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly.colors import get_colorscale

from pipeline.artifacts.files import atomic_path
from pipeline.artifacts.overrides import Override
from pipeline.figures.embeddings import name_annotations, name_places
from pipeline.figures.palette import CHOSEN, SCALE
from pipeline.figures.rendering import plotly_script
from pipeline.figures.style import Colors, Scale
from viz.color_by import COLORINGS, ColorData, colors_by
from viz.data import Points
from viz.export.sprites import COLUMNS, choose_thumbnail_format, sprite_sheets
from viz.filter_settings import FilterPreview
from viz.search import MAX_QUERY

MAX_SHOWN = 100_000
"""Largest number of images on a page; with more, browsers become slow."""

BYTES_PER_THUMBNAIL = 190
"""Average size. With base64 and everything else, 50,000 images of 32 x 32 pixels take less than 25 MB."""

# In order of use.
_SCRIPTS = ("data.js", "search.js", "csv.js", "pictures.js", "map.js", "page.js")


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """Data of the page. Index i of every column is the i-th image of the page, most suspect first.

    Attributes:
        about: data of the whole page, stored as JSON.
        columns: name -> gzip of a little-endian array, or of a JSON list of strings.
        sheets: WebP files; see `viz.export.sprites`.
    """

    about: Mapping[str, Any]
    columns: Mapping[str, bytes]
    sheets: Iterator[bytes]


def make_content(points: Points, preview: FilterPreview, overrides: Mapping[int, Override]) -> Content:
    """Return the data of the page, with at most `MAX_SHOWN` images.

    Args:
        points: of the network.
        preview: the images that the filter drops.
        overrides: row -> override of the image.
    """
    rows = exported_rows(preview.keep, preview.scores, MAX_SHOWN)
    color_data = ColorData(points=points, preview=preview)
    colors = {key: colors_by(key, color_data) for key in informative_colorings(color_data)}
    thumbnails = choose_thumbnail_format(points.images, BYTES_PER_THUMBNAIL)
    about = {
        "network": points.network,
        "notes": _notes(points, preview, rows),
        "nPlanted": None if points.true_labels is None else int(points.planted.sum()),
        "classNames": list(points.class_names),
        "annotations": name_annotations(name_places(points.coordinates, points.labels, points.class_names)),
        "ringColor": CHOSEN,
        "colorings": [{"key": key, "name": COLORINGS[key][0], **_legend(colors[key])} for key in colors],
        "sprites": {"side": thumbnails.side, "columns": COLUMNS, "mediaType": "image/webp"},
        "byHand": {
            str(index): {
                "decision": overrides[row].action,
                # Null unless relabeled.
                "label": overrides[row].label or None,
                "note": overrides[row].note,
            }
            for index, row in enumerate(rows.tolist())
            if row in overrides
        },
    }
    columns = {name: gzip.compress(content, mtime=0) for name, content in _columns(points, preview, rows, colors)}
    return Content(about=about, columns=columns, sheets=sprite_sheets(points.images, rows, thumbnails))


def exported_rows(keep: NDArray[np.bool_], scores: NDArray[np.float64], max_rows: int) -> NDArray[np.int64]:
    """Return rows by descending score: all dropped images, and a sample of the kept ones up to `max_rows` in total.

    Equal arguments give the same sample.

    Args:
        keep: (N,) whether the image is kept.
        scores: (N,) 0 to 1.
        max_rows: number of rows. More are returned if more images are dropped.
    """
    dropped, kept = np.flatnonzero(~keep), np.flatnonzero(keep)
    n_sampled = max(0, max_rows - len(dropped))
    if len(kept) > n_sampled:
        kept = np.random.default_rng(0).choice(kept, n_sampled, replace=False)
    rows = np.sort(np.concatenate([dropped, kept]))
    ordered: NDArray[np.int64] = rows[np.argsort(-scores[rows], kind="stable")]
    return ordered


def informative_colorings(color_data: ColorData) -> list[str]:
    """Return the keys of `COLORINGS` that are informative; clusters are not if each class is one cluster."""
    return [key for key in COLORINGS if key != "cluster" or color_data.points.clusters.max(initial=0) > 0]


def _notes(points: Points, preview: FilterPreview, rows: NDArray[np.int64]) -> list[str]:
    n, n_dropped = len(preview.keep), int((~preview.keep).sum())
    notes = [f"{note.capitalize()}."] if (note := points.planted_note) else []
    notes += [f"{n:,} images, {n_dropped:,} dropped ({n_dropped / n:.1%}); {len(preview.overrides):,} decided by hand."]
    if len(rows) < n:
        n_sampled = len(rows) - n_dropped
        notes.append(
            f"The page shows all dropped images and a sample of {n_sampled:,} of the {n - n_dropped:,} kept ones."
        )
    return notes


def _legend(colors: Colors) -> dict[str, Any]:
    if isinstance(colors, Scale):
        return {"scale": [color for _, color in get_colorscale(SCALE)], "title": colors.name}
    return {"names": list(colors.names), "colors": list(colors.colors)}


def _columns(
    points: Points, preview: FilterPreview, rows: NDArray[np.int64], colors: Mapping[str, Colors]
) -> Iterator[tuple[str, bytes]]:
    index = np.full(len(points), -1, dtype=np.int32)
    index[rows] = np.arange(len(rows))
    arrays = {
        "sample_id": rows.astype("<i4"),
        "x": points.coordinates[rows, 0].astype("<f4"),
        "y": points.coordinates[rows, 1].astype("<f4"),
        "label": points.labels[rows].astype("<u2"),
        "predicted": points.predicted[rows].astype("<u2"),
        # Equal to the label if that was not changed on purpose.
        "true_label": (points.labels if points.true_labels is None else points.true_labels)[rows].astype("<u2"),
        "confidence": points.confidence[rows].astype("<f4"),
        "score": preview.scores[rows].astype("<f8"),
        "keep": preview.keep[rows].astype("u1"),
        # -1 for images that are not on the page.
        "neighbours": index[points.neighbors[rows]].astype("<i4"),
    }
    for key, coloring in colors.items():
        values = coloring.values if isinstance(coloring, Scale) else coloring.codes
        arrays[f"color_{key}"] = values[rows].astype("<f4" if isinstance(coloring, Scale) else "<u2")
    for name, array in arrays.items():
        yield name, array.tobytes()
    sha256 = points.sha256.take(rows).to_pylist()
    yield "sha256", b"".join(bytes.fromhex(digest) for digest in sha256)
    yield "path", _as_json(points.paths.take(rows).to_pylist())
    yield "reason", _as_json(points.reasons.take(rows).to_pylist())


def _as_json(texts: Sequence[str]) -> bytes:
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()


def write_page(file: Path, content: Content) -> None:
    """Write the page atomically. Equal content gives equal bytes.

    Raises:
        InputError: the disk is full.
    """
    with atomic_path(file) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as text:
        for part in _page(content):
            text.write(part)


def _page(content: Content) -> Iterator[str]:
    plotly, script = plotly_script(), "\n".join(_asset(name) for name in _SCRIPTS)
    head, tail = Template(_asset("page.html")).substitute(
        title=html.escape(f"batchsieve: {content.about['network']}"),
        max_query=MAX_QUERY,
        network=html.escape(str(content.about["network"])),
        policy=content_security_policy(plotly, script),
        style=_asset("base.css", "viz") + _asset("style.css"),
    ).split("<!-- data -->")  # fmt: skip
    yield head
    yield _block("about", "application/json", _json_in_html(content.about))
    for name, packed in content.columns.items():
        yield _block(f"column-{name}", "text/plain", base64.b64encode(packed).decode("ascii"))
    for number, sheet in enumerate(content.sheets):
        yield _block(f"sheet-{number}", "text/plain", base64.b64encode(sheet).decode("ascii"))
    yield f"<script>{plotly}</script>\n<script>{script}</script>\n"
    yield tail


def content_security_policy(*scripts: str) -> str:
    """Return a policy that runs only these scripts, by their SHA-256, and allows no connection.

    It has two exceptions: plotly adds style elements to the page, and compiles code for WebGL. Neither runs text that
    became markup.
    """
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _block(identifier: str, media_type: str, text: str) -> str:
    """Return an element with data that browsers do not run; `text` must not have `<`."""
    return f'<script type="{media_type}" id="{identifier}">{text}</script>\n'


def _json_in_html(value: Any) -> str:
    """Return JSON that cannot end the element around it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str, package: str = "viz.export") -> str:
    return files(package).joinpath("assets", name).read_text(encoding="utf-8")
