"""State of a map from the controls of the page, and the CSV file of a selection."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from pipeline.artifacts.prepared import PLANTED_COLUMN
from pipeline.errors import InputError
from viz.color_by import ColorData
from viz.data import Points, Source
from viz.filter_settings import FilterPreview, FilterSettings, preview_filter
from viz.search import matching

_SETTINGS = TypeAdapter(FilterSettings)


@dataclass(frozen=True, kw_only=True, eq=False)
class MapState:
    """State of a map: one network's images under the current controls.

    Attributes:
        points: of the network.
        settings: of the filter preview.
        preview: the images that the settings drop.
        shown: (N,) whether the image passes the filters by class and score, and the search.
    """

    points: Points
    settings: FilterSettings
    preview: FilterPreview
    shown: NDArray[np.bool_]

    @cached_property
    def color_data(self) -> ColorData:
        """Data for coloring."""
        return ColorData(points=self.points, preview=self.preview)


def make_map_state(
    source: Source,
    network: str,
    settings_json: Mapping[str, Any] | None,
    classes: Sequence[int] | None = None,
    scores: Sequence[float] | None = None,
    search: str = "",
) -> MapState:
    """Preview the filter on a network's images, and select the images to show.

    Args:
        source: of the images.
        network: of the map.
        settings_json: from `settings_to_json`; None for the settings of the filter.
        classes: to show; empty or None for all.
        scores: lowest and highest score to show, 0 to 1.
        search: query; see `viz.search`.

    Raises:
        InputError: files are missing or do not fit, or the settings are invalid.
    """
    points, settings = source.points(network), settings_from_json(settings_json)
    preview = _cached_preview(source, points, settings)
    shown = np.isin(points.labels, list(classes)) if classes else np.ones(len(points), dtype=np.bool_)
    if scores:
        shown &= (preview.scores >= scores[0]) & (preview.scores <= scores[1])
    if search.strip():
        shown &= matching(source, points, search)
    return MapState(points=points, settings=settings, preview=preview, shown=shown)


def _cached_preview(source: Source, points: Points, settings: FilterSettings) -> FilterPreview:
    key = points.network, json.dumps(settings_to_json(settings), sort_keys=True)
    return source.previews.get(key, source.decisions_stamp(points), lambda: preview_filter(source, points, settings))


def settings_to_json(settings: FilterSettings) -> dict[str, Any]:
    """Return the settings as JSON values, for the page and its links."""
    values: dict[str, Any] = _SETTINGS.dump_python(settings, mode="json")
    return values


def settings_from_json(values: Mapping[str, Any] | None) -> FilterSettings:
    """Return settings from the JSON values of the page or of a link; None for the settings of the filter.

    Raises:
        InputError: the values are invalid.
    """
    try:
        return _SETTINGS.validate_python(values or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f": {part}" if i == 0 else f".{part}" for i, part in enumerate(first["loc"]))
        raise InputError(f"the filter settings{where}: {first['msg']}; reset the settings") from None


COLUMNS = ("path", "sha256", "label_name", "predicted_name", "score", "keep", "reason", "corrected_label_name")

_DECIMALS = Decimal("1e-6")
# Spreadsheets with East Asian settings treat the full-width forms as the plain ones.
_FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠'")


def selection_csv(points: Points, preview: FilterPreview, rows: Sequence[int]) -> str:
    """Return a CSV file of the images in `rows`, in that order, with a header of `COLUMNS`.

    All cells are quoted and lines end with a line feed. `score` has six decimals, with ties rounded up.
    `keep` is true or false and includes overrides, as `corrected_label_name` does.

    A cell that starts with `=`, `+`, `-`, `@` (full-width ones too), a tab or a line break would run as a formula
    in a spreadsheet (OWASP, "CSV Injection"). Such cells, and cells that start with an apostrophe, get a leading
    apostrophe: remove one to restore the text.

    If labels were changed on purpose, a last column has their number in every row.

    The exported page writes the same bytes; see export/assets/csv.js.
    """
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    n_planted = [] if points.true_labels is None else [str(points.planted.sum())]
    writer.writerow([*COLUMNS, *([PLANTED_COLUMN] if n_planted else [])])
    for row in rows:
        cells = (
            points.paths[row].as_py(),
            points.sha256[row].as_py(),
            points.name(row),
            points.class_names[int(points.predicted[row])],
            # As JavaScript's toFixed: from the exact value, with ties rounded up.
            str(Decimal(float(preview.scores[row])).quantize(_DECIMALS, ROUND_HALF_UP)),
            "true" if preview.keep[row] else "false",
            points.reasons[row].as_py(),
            _corrected_name(points, preview, row),
            *n_planted,
        )
        writer.writerow([_escape_formula(cell) for cell in cells])
    return file.getvalue()


def _corrected_name(points: Points, preview: FilterPreview, row: int) -> str:
    override = preview.overrides.get(row)
    return points.name(row) if override is None else override.label or points.name(row)


def _escape_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA_STARTS) else cell
