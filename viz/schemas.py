"""Schemas of the values of controls that callbacks receive. The page sends no others."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, TypeAdapter, ValidationError

from viz.callbacks.lasso import LassoShapes
from viz.color_by import COLORINGS
from viz.dialogs import PROPOSAL_KINDS
from viz.filter_settings import SCORER_CHOICES
from viz.layout import LISTS, SORTS, VIEWS
from viz.state import settings_from_json

# Integers that JavaScript represents exactly.
_LARGEST = 2**53
_Integer = Annotated[int, Field(strict=True, ge=-_LARGEST, le=_LARGEST)]
_Row = Annotated[int, Field(strict=True, ge=0, le=_LARGEST)]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Pair = Field(min_length=2, max_length=2)


def _check_encodable(text: str) -> str:
    # JSON may have half surrogates. The error is a ValueError.
    text.encode()
    return text


_Text = Annotated[str, Field(strict=True), AfterValidator(_check_encodable)]


class _Schema(BaseModel):
    # Plotly's events have more keys than the callbacks read.
    model_config = ConfigDict(strict=True, extra="ignore")


class _Selection(_Schema):
    generation: _Text | None
    rows: Annotated[list[_Row], FailFast()]
    graph: _Text


class _Zoom(_Schema):
    left: _Number | None = Field(default=None, alias="xaxis.range[0]")
    right: _Number | None = Field(default=None, alias="xaxis.range[1]")
    bottom: _Number | None = Field(default=None, alias="yaxis.range[0]")
    top: _Number | None = Field(default=None, alias="yaxis.range[1]")
    x_autorange: bool | None = Field(default=None, alias="xaxis.autorange")
    y_autorange: bool | None = Field(default=None, alias="yaxis.autorange")


class _PlottedPoints(_Schema):
    network: _Text
    generation: _Text
    partial: bool
    rows: _Text


class _PlottedMap(_PlottedPoints):
    named: bool
    box: Annotated[list[Annotated[list[_Number], _Pair]], _Pair] | None
    zoom: _Zoom | None


class _Point(_Schema):
    bbox: dict[_Text, _Number] | None = None


class _HoverEvent(_Schema):
    points: list[_Point] = []


class _MatrixCell(_Schema):
    label: _Integer
    suggested: _Integer
    generation: _Text | None


class _Moved(_Schema):
    control: _Text
    value: _Number


def _check_settings(values: dict[str, Any]) -> dict[str, Any]:
    settings_from_json(values)
    return values


def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _one_of(keys: Collection[str]) -> TypeAdapter[Any]:
    def check(key: str) -> str:
        if key not in keys:
            raise ValueError
        return key

    return _adapter(Annotated[_Text, AfterValidator(check)])


_TEXT, _OPTIONAL_TEXT = _adapter(_Text), _adapter(_Text | None)
_COUNT, _NUMBER, _ROW = _adapter(_Integer | None), _adapter(_Number | None), _adapter(_Row | None)
_SETTINGS = _adapter(Annotated[dict[str, Any], AfterValidator(_check_settings)] | None)

SCHEMAS: Mapping[str, TypeAdapter[Any]] = {
    "network.value": _TEXT,
    "network-b.value": _TEXT,
    "settings.data": _SETTINGS,
    "settings-b.data": _SETTINGS,
    "classes.value": _adapter(list[_Integer] | None),
    "scores.value": _adapter(Annotated[list[_Number], _Pair] | None),
    "search.value": _OPTIONAL_TEXT,
    "coloring.value": _one_of(COLORINGS),
    "view.value": _one_of(VIEWS),
    "names.value": _adapter(list[_Text] | None),
    "list.value": _one_of(LISTS),
    "list-before.data": _OPTIONAL_TEXT,
    "sort.value": _one_of(SORTS),
    "page-number.data": _adapter(_Integer),
    "decisions-page.data": _adapter(_Integer),
    "url.search": _OPTIONAL_TEXT,
    # Filter preview. Boxes send None for what is no number, and may hold numbers outside their range.
    "scope.value": _COUNT,
    "scorer.value": _one_of(SCORER_CHOICES),
    "scorer-b.value": _one_of(SCORER_CHOICES),
    "moved.data": _adapter(_Moved | None),
    **dict.fromkeys(
        (
            "threshold.value",
            "threshold-box.value",
            "share.value",
            "share-box.value",
            "share-b.value",
            "min_samples.value",
            "min_samples-b.value",
        ),
        _NUMBER,
    ),
    # Chosen image and selection.
    **dict.fromkeys(("focus.data", "map-focus.data", "review-focus.data"), _ROW),
    "selection.data": _adapter(_Selection),
    "lasso-shapes.data": _adapter(LassoShapes | None),
    "matrix-cell.data": _adapter(_MatrixCell | None),
    "map.hoverData": _adapter(_HoverEvent | None),
    "other.hoverData": _adapter(_HoverEvent | None),
    # What the page shows.
    "map.relayoutData": _adapter(_Zoom | None),
    "zoomed.data": _adapter(_Zoom | None),
    "plotted.data": _adapter(_PlottedMap | None),
    "plotted-b.data": _adapter(_PlottedPoints | None),
    "queue.data": _adapter(dict[str, Any] | None),
    "edited.data": _OPTIONAL_TEXT,
    "map-edited.data": _OPTIONAL_TEXT,
    # Dialog and buttons.
    "write-as.value": _one_of(PROPOSAL_KINDS),
    "difference.children": _OPTIONAL_TEXT,
    "run-filter.disabled": _adapter(Annotated[bool, Field(strict=True)] | None),
    **dict.fromkeys(
        (
            "reset.n_clicks",
            "previous.n_clicks",
            "next.n_clicks",
            "csv.n_clicks",
            "propose.n_clicks",
            "write.n_clicks",
            "run-filter.n_clicks",
            "clock.n_intervals",
        ),
        _COUNT,
    ),
    # The view Training.
    "study.value": _OPTIONAL_TEXT,
    "study-batch.value": _COUNT,
}
"""Id and property of each control that a callback of the server reads -> schema of its values."""


def is_valid(control: str, value: object) -> bool:
    """Return whether the page can send `value`; rows and names may still be those of other files.

    Args:
        control: a key of `SCHEMAS`.
    """
    try:
        SCHEMAS[control].validate_python(value)
    except ValidationError:
        return False
    return True
