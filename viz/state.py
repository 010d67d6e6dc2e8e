"""The state of the page, and selections of points."""

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
from viz.color_by import ColorData, make_color_data
from viz.data import Points, Source
from viz.filter_settings import FilterPreview, FilterSettings, preview_filter

# What a reader asks to see, and what there is to show.


_RULE = TypeAdapter(FilterSettings)


@dataclass(frozen=True, kw_only=True, eq=False)
class MapState:
    """One network's images as the controls have them.

    Attributes:
        shown: (N,) whether the image passes the filters by class and score.
    """

    points: Points
    settings: FilterSettings
    preview: FilterPreview
    shown: NDArray[np.bool_]

    @cached_property
    def color_data(self) -> ColorData:
        """What colours can tell."""
        return make_color_data(self.points, self.preview)


def make_map_state(
    source: Source,
    network: str,
    rule: Mapping[str, Any] | None,
    classes: Sequence[int] | None = None,
    scores: Sequence[float] | None = None,
) -> MapState:
    """Judge a network's images and filter them.

    Args:
        rule: as `settings_to_json` gives it; None is the filter's own.
        classes: those shown; none named means all.
        scores: the least and greatest score shown, 0 to 1.

    Raises:
        InputError: files are missing or do not fit, or the rule is none.
    """
    points, settings = source.points(network), settings_from_json(rule)
    preview = _cached_preview(source, points, settings)
    shown = np.isin(points.labels, list(classes)) if classes else np.ones(len(points), dtype=np.bool_)
    if scores:
        shown &= (preview.scores >= scores[0]) & (preview.scores <= scores[1])
    return MapState(points=points, settings=settings, preview=preview, shown=shown)


def _cached_preview(source: Source, points: Points, rule: FilterSettings) -> FilterPreview:
    key = points.network, json.dumps(settings_to_json(rule), sort_keys=True)
    return source.previews.get(key, source.decisions_stamp(points), lambda: preview_filter(source, points, rule))


def settings_to_json(rule: FilterSettings) -> dict[str, Any]:
    """For the page to keep."""
    kept: dict[str, Any] = _RULE.dump_python(rule, mode="json")
    return kept


def settings_from_json(kept: Mapping[str, Any] | None) -> FilterSettings:
    """The rule that the page kept, or that a link brings.

    Raises:
        InputError: it is none.
    """
    try:
        return _RULE.validate_python(kept or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"the link's rule: {where}: {first['msg']}; reset the settings") from None


# Chosen images as a CSV file for people and spreadsheets.


COLUMNS = ("path", "sha256", "label_name", "predicted_name", "score", "keep", "reason")

_DECIMALS = Decimal("1e-6")
# Full-width forms too: spreadsheets in East Asian settings read them as the plain ones.
_STARTS = tuple("=+-@\t\r\n＝＋－＠'")


def selection_csv(points: Points, preview: FilterPreview, rows: Sequence[int]) -> str:
    """The images in `rows`, in that order, under a header of `COLUMNS`.

    All cells are quoted and lines end with a line feed. `score` has six places, a half rounded up,
    and `keep` is true or false, human decisions included. A cell that begins with `=`, `+`, `-`, `@`
    (full-width ones too), a tab or a line break would run as a formula in a spreadsheet
    (OWASP, "CSV Injection"): an apostrophe is put before it, and before cells that begin with one, so
    that whoever reads the file back takes one leading apostrophe away and has the exact text.
    Where labels were changed on purpose, a last column says in every row how many.

    The button of the exported page gives the same bytes; see assets/csv.js.
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
            # As JavaScript's toFixed has it: of the exact value, and a tie goes up.
            str(Decimal(float(preview.scores[row])).quantize(_DECIMALS, ROUND_HALF_UP)),
            "true" if preview.keep[row] else "false",
            points.reasons[row].as_py(),
            *n_planted,
        )
        writer.writerow([_harmless(cell) for cell in cells])
    return file.getvalue()


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_STARTS) else cell
