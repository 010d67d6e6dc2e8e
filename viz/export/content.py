"""What the exported page holds: which images, in which order, and their columns as bytes."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly.colors import get_colorscale

from pipeline.artifacts.overrides import Override
from viz.coloring import COLORINGS, Facts, colors_by
from viz.data import Points
from viz.export.sprites import COLUMNS, choose_rung, sprite_sheets
from viz.facts import facts_of
from viz.figures.groups import Colors, Scale
from viz.figures.palette import SCALE
from viz.rules import Verdict

MOST_SHOWN = 100_000
"""Beyond this many images a browser's map becomes slow."""

BYTES_PER_PICTURE = 190
"""With these, base64 and all else, 50,000 images of 32 x 32 pixels stay below 25 MB."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """The page's data. Index i of every column is the i-th image of the page, the most suspect first.

    Attributes:
        about: what stands once; becomes JSON.
        columns: name -> gzip of a little-endian array, or of a JSON list of strings.
        sheets: WebP files; see `sprites`.
    """

    about: Mapping[str, Any]
    columns: Mapping[str, bytes]
    sheets: Iterator[bytes]


def content_of(points: Points, verdict: Verdict, overrides: Mapping[int, Override]) -> Content:
    """The page's data, with all images up to `MOST_SHOWN` of them.

    Args:
        overrides: row -> what a person decided of it.
    """
    rows = rows_shown(verdict.keep, verdict.scores, MOST_SHOWN)
    facts = facts_of(points, verdict)
    colors = {key: colors_by(key, facts) for key in colorings_of(facts)}
    rung = choose_rung(points.images, BYTES_PER_PICTURE)
    about = {
        "network": points.network,
        "notes": _notes(points, verdict, rows),
        "nPlanted": None if points.true_labels is None else int(points.planted.sum()),
        "classNames": list(points.class_names),
        "colorings": [{"key": key, "name": COLORINGS[key][0], **_legend(colors[key])} for key in colors],
        "sprites": {"side": rung.side, "columns": COLUMNS, "mediaType": "image/webp"},
        "byHand": {
            str(index): {"decision": overrides[row].decision, "note": overrides[row].note}
            for index, row in enumerate(rows.tolist())
            if row in overrides
        },
    }
    columns = {name: gzip.compress(content, mtime=0) for name, content in _columns(points, verdict, rows, colors)}
    return Content(about=about, columns=columns, sheets=sprite_sheets(points.images, rows, rung))


def rows_shown(keep: NDArray[np.bool_], scores: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Rows by descending score: all, or all that go and as many of the rest as `most` leaves room for.

    Args:
        keep, scores: (N,) each. The sample is the same for the same arguments.
    """
    rows, staying = np.flatnonzero(~keep), np.flatnonzero(keep)
    room = max(0, most - len(rows))
    if len(staying) > room:
        staying = np.random.default_rng(0).choice(staying, room, replace=False)
    rows = np.sort(np.concatenate([rows, staying]))
    ordered: NDArray[np.int64] = rows[np.argsort(-scores[rows], kind="stable")]
    return ordered


def colorings_of(facts: Facts) -> list[str]:
    """Keys of `COLORINGS` that tell something here; clusters that are whole classes do not."""
    return [key for key in COLORINGS if key != "cluster" or facts.clusters.max(initial=0) > 0]


def _notes(points: Points, verdict: Verdict, rows: NDArray[np.int64]) -> list[str]:
    n, n_going = len(verdict.keep), int((~verdict.keep).sum())
    notes = [f"{note.capitalize()}."] if (note := points.planted_note) else []
    notes += [f"{n:,} images, of which {n_going:,} go ({n_going / n:.1%}); {len(verdict.by_hand):,} decided by hand."]
    if len(rows) < n:
        sampled = len(rows) - n_going
        notes.append(f"Shown are all that go and {sampled:,} drawn from the {n - n_going:,} that stay.")
    return notes


def _legend(colors: Colors) -> dict[str, Any]:
    if isinstance(colors, Scale):
        return {"scale": [color for _, color in get_colorscale(SCALE)], "title": colors.name}
    return {"names": list(colors.names), "colors": list(colors.colors)}


def _columns(
    points: Points, verdict: Verdict, rows: NDArray[np.int64], colors: Mapping[str, Colors]
) -> Iterator[tuple[str, bytes]]:
    index = np.full(len(points), -1, dtype=np.int32)
    index[rows] = np.arange(len(rows))
    arrays = {
        "sample_id": rows.astype("<i4"),
        "x": points.coordinates[rows, 0].astype("<f4"),
        "y": points.coordinates[rows, 1].astype("<f4"),
        "label": points.labels[rows].astype("<u2"),
        "predicted": points.predicted[rows].astype("<u2"),
        # Equal to the label where none was changed on purpose.
        "true_label": (points.labels if points.true_labels is None else points.true_labels)[rows].astype("<u2"),
        "confidence": points.confidence[rows].astype("<f4"),
        "score": verdict.scores[rows].astype("<f8"),
        "keep": verdict.keep[rows].astype("u1"),
        # Images that are not on the page: -1.
        "neighbours": index[points.neighbours[rows]].astype("<i4"),
    }
    for key, told in colors.items():
        values = told.values if isinstance(told, Scale) else told.codes
        arrays[f"color_{key}"] = values[rows].astype("<f4" if isinstance(told, Scale) else "<u2")
    for name, array in arrays.items():
        yield name, array.tobytes()
    sha256 = points.sha256.take(rows).to_pylist()
    yield "sha256", b"".join(bytes.fromhex(digest) for digest in sha256)
    yield "path", _as_json(points.paths.take(rows).to_pylist())
    yield "reason", _as_json(points.reasons.take(rows).to_pylist())


def _as_json(texts: Sequence[str]) -> bytes:
    return json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()
