"""Components of the page: cards, tiles, tables, legends and messages."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from dash import dcc, html
from numpy.typing import NDArray
from plotly.colors import get_colorscale

from pipeline.artifacts.overrides import Override
from pipeline.figures.palette import DROPPED, KEPT, ONLY_A, ONLY_B, SCALE
from pipeline.figures.style import MAX_NAMES, Colors, Groups
from viz.data import Points
from viz.filter_settings import AS_FILTERED, FilterPreview
from viz.state import MapState

NAMES = ("both keep", "only A drops", "only B drops", "both drop")
"""Outcomes of a comparison of two settings."""

PAPER_FRACTIONS = {"resnet18": 0.0621, "resnet34": 0.0655, "resnet50": 0.0734, "resnet101": 0.0513, "resnet152": 0.0124}
"""Fraction of the 50,000 training images of CIFAR-10 that each filter drops: table I of Gahlot et al. (2020)."""

_PAPER_DATASET = "cifar10"


def hint() -> html.P:
    """Return the placeholder of the card."""
    return html.P("Click a point or an image to see it with its nearest neighbors.", className="hint")


def problem(message: str) -> html.Div:
    """Return a box that replaces what cannot be shown; `message` says what to run."""
    return html.Div([html.Strong("Cannot show this"), html.P(message)], className="problem", role="alert")


def empty(message: str) -> html.P:
    """Return the placeholder of an empty list; `message` says why it is empty."""
    return html.P(message, className="hint empty")


def labeled(text: str, control: Any) -> list[Any]:
    """Return a label and its control, which a click on the label activates."""
    attributes: dict[str, Any] = {"id": _name_id(control)} if isinstance(control, dcc.Dropdown) else {}
    return [html.Label(text, htmlFor=control.id, className="name", **attributes), control]


def named(text: str, dropdown: Any) -> list[Any]:
    """Return a list of choices without a visible label, with its name for screen readers."""
    return [html.Span(text, id=_name_id(dropdown), hidden=True), dropdown]


def aria_label(name: str) -> dict[str, Any]:
    """Return the attribute that names an element for screen readers. Dash accepts it, unlike its type hints."""
    return {"aria-label": name}


def _name_id(dropdown: Any) -> str:
    """Return the id of the element by which Dash names the button of a list, before the chosen value."""
    return f"{dropdown.id}-value-count"


def point_lines(state: MapState, row: int) -> list[html.P]:
    """Return the text about one image: its labels, score, the filter's reason and the override."""
    points, preview = state.points, state.preview
    suggested = points.class_names[points.predicted[row]]
    return [
        html.P([html.Strong(f"#{row}"), " · label: ", html.Strong(points.name(row))]),
        html.P(
            f"suggested label: {suggested} ({100 * points.confidence[row]:.0f} %)",
            className="" if points.predicted[row] == points.labels[row] else "contradicts",
        ),
        *_true_label_lines(points, row),
        html.P(["score ", html.B(f"{preview.scores[row]:.3f}"), f" · {_outcome_text(state, row)}"]),
        html.P(["filter: " if state.settings.scorer_choice != AS_FILTERED else "", points.reasons[row].as_py()]),
        *_override_lines(state, row),
    ]


def tooltip(state: MapState, row: int) -> list[Any]:
    """Return the content of the tooltip of a point."""
    return [picture(state.points, row), *point_lines(state, row)]


def card(state: MapState, row: int) -> list[Any]:
    """Return the card of the chosen image, with its nearest neighbors and their labels."""
    points = state.points
    neighbors = [tile(state, neighbor) for neighbor in points.neighbors[row].tolist()]
    return [
        html.Div(
            [picture(points, row), html.Div(point_lines(state, row))],
            className="chosen",
            **data_attributes(points, row),
        ),
        html.P(points.paths[row].as_py(), className="path"),
        html.H2("Nearest by features"),
        html.Div(neighbors, className="tiles"),
    ]


def tile(state: MapState, row: int) -> html.Button:
    """Return an image as a button, with its labels; the frame shows whether it is kept or dropped."""
    outcome = "kept" if state.preview.keep[row] else "dropped"
    classes = ["tile", outcome, *(["hand"] if row in state.preview.overrides else [])]
    return html.Button(
        [
            picture(state.points, row),
            html.Span(state.points.name(row)),
            *_tile_lines(state.points, row, state.preview.overrides),
        ],
        className=" ".join(classes),
        title=f"#{row}, score {state.preview.scores[row]:.3f}: "
        f"{_outcome_text(state, row)}{_true_label_text(state.points, row)}",
        **data_attributes(state.points, row),
    )


def picture(points: Points, row: int) -> html.Img:
    """Return an image by its URL. The stamp in the URL rejects images of another run of `prepare`."""
    return html.Img(src=f"/thumbnail/{row}.png?{points.images_stamp}", alt=f"image {row}: {points.name(row)}")


def data_attributes(points: Points, row: int) -> dict[str, Any]:
    """Return the attributes by which page.js identifies an image. Dash accepts any `data-*`, unlike its type hints."""
    suggested, label = int(points.predicted[row]), int(points.labels[row])
    attributes = {"data-row": str(row), "data-generation": points.generation}
    return attributes | ({"data-suggested": str(suggested)} if suggested != label else {})


def legend(colors: Colors, rows: NDArray[np.int64]) -> list[Any]:
    """Return the legend of the map's colors.

    Args:
        colors: of all images.
        rows: of the shown images, which the legend counts by color, plotted or not.
    """
    if not isinstance(colors, Groups):
        gradient = {"background": f"linear-gradient(90deg, {', '.join(color for _, color in get_colorscale(SCALE))})"}
        return [html.Span("0"), html.Span(className="scale", style=gradient), html.Span("1"), html.Span(colors.name)]
    counts = np.bincount(colors.codes[rows], minlength=len(colors.names))
    if len(colors.names) > MAX_NAMES:
        return [html.Span(f"{(counts > 0).sum()} groups; colors repeat: hover over a point to see its group")]
    entries = zip(colors.names, colors.colors, counts.tolist(), strict=True)
    return [
        html.Span([html.I(style={"background": color}), name, html.Small(f" {count:,}")])
        for name, color, count in entries
        if count
    ]


def class_table(state: MapState, overall: float, thresholds: NDArray[np.float64]) -> html.Table:
    """Return a table of dropped and kept images, in total and by class, next to the output of the filter.

    Args:
        state: of the map.
        overall: threshold of the classes without a separate one.
        thresholds: (n_classes,) threshold of each class.
    """
    points = state.points
    n = len(points.class_names)
    sizes, kept, kept_by_filter = (
        np.bincount(points.labels[rows], minlength=n)
        for rows in (np.arange(len(points)), state.preview.keep, points.kept)
    )
    lines = [("all", sizes.sum(), kept.sum(), kept_by_filter.sum(), overall)]
    lines += list(zip(points.class_names, sizes, kept, kept_by_filter, thresholds, strict=True))
    body = [
        html.Tr(
            [
                html.Th(name, title=name),
                *(html.Td(text) for text in (f"{size:,}", f"{1 - n_kept / size:.1%}", f"{n_kept:,}", f"{by_filter:,}")),
                html.Td(f"{threshold:.3g}"),
            ]
        )
        for name, size, n_kept, by_filter, threshold in lines
        if size
    ]
    titles = {"filter": "images that the filter kept"}
    head = [
        html.Th(text, title=titles.get(text)) for text in ("class", "images", "dropped", "kept", "filter", "threshold")
    ]
    return html.Table([html.Caption(_paper_note(points)), html.Thead(html.Tr(head)), html.Tbody(body)])


def differences(a: FilterPreview, b: FilterPreview) -> Groups:
    """Return which of the two previews drops each of N images, overrides included."""
    codes = (~a.keep).astype(np.uint8) + 2 * (~b.keep).astype(np.uint8)
    return Groups(codes=codes, names=NAMES, colors=(KEPT, ONLY_A, ONLY_B, DROPPED))


def difference_line(a: FilterPreview, b: FilterPreview) -> html.P:
    """Return the numbers of images that each of two previews and both drop, and their Jaccard index."""
    dropped = ~a.keep, ~b.keep
    both, either = int((dropped[0] & dropped[1]).sum()), int((dropped[0] | dropped[1]).sum())
    jaccard = f"{both / either:.3f}" if either else "undefined"
    return html.P(
        f"A drops {dropped[0].sum():,}, B drops {dropped[1].sum():,}, both {both:,}; Jaccard index {jaccard}."
    )


def _paper_note(points: Points) -> str:
    fraction = PAPER_FRACTIONS.get(points.network)
    if fraction is None or points.dataset != _PAPER_DATASET:
        return ""
    return f"In the paper (table I), {points.network} drops {fraction:.2%} of CIFAR-10. It gives no numbers by class."


def _tile_lines(points: Points, row: int, overrides: Mapping[int, Override]) -> list[html.Span]:
    """Return the label given by hand, else the suggested one if it differs; and the true one of a planted label."""
    lines = []
    override = overrides.get(row)
    if override is not None and override.decision == "relabel":
        lines.append(html.Span(f"→ {override.label}", className="relabeled"))
    elif points.predicted[row] != points.labels[row]:
        lines.append(html.Span(f"→ {points.class_names[points.predicted[row]]}", className="contradicts"))
    if points.true_labels is not None and points.planted[row]:
        lines.append(html.Span(f"true: {points.class_names[points.true_labels[row]]}", className="truth"))
    return lines


def _true_label_lines(points: Points, row: int) -> list[html.P]:
    text = _true_label_text(points, row)
    return [html.P(text.removeprefix("; "), className="truth")] if text else []


def _true_label_text(points: Points, row: int) -> str:
    if points.true_labels is None or not points.planted[row]:
        return ""
    return f"; label changed on purpose, true label: {points.class_names[points.true_labels[row]]}"


def _override_lines(state: MapState, row: int) -> list[html.P]:
    """Return the override of an image with its date and note, if it has one."""
    override = state.preview.overrides.get(row)
    if override is None:
        return []
    date = f", {override.timestamp}" if override.timestamp else ""
    note: list[Any] = [": ", html.Q(override.note)] if override.note else []
    return [html.P([f"{override.action} by hand{date}", *note])]


def _outcome_text(state: MapState, row: int) -> str:
    outcome = "kept" if state.preview.keep[row] else "dropped"
    override = state.preview.overrides.get(row)
    if override is None:
        duplicate_of = state.preview.redundant.get(row)
        if duplicate_of is None:
            return outcome
        other = "a test image" if duplicate_of >= len(state.points) else f"#{duplicate_of}"
        return f"dropped as a near duplicate of {other}"
    return f"relabeled as {override.label} by hand" if override.decision == "relabel" else f"{outcome} by hand"
