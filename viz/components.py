"""Components of the page."""

from typing import Any

import numpy as np
from dash import html
from numpy.typing import NDArray
from plotly.colors import get_colorscale

from pipeline.figures.style import MAX_NAMES, NOISE, SCALE, SERIES, Colors, Groups
from viz.data import Points
from viz.filter_settings import AS_FILTERED, FilterPreview
from viz.state import MapState

# Pieces of the page: cards, tiles, tables, legends and messages.


# Gahlot et al. 2020, table I: dropped of the 50,000 training images of CIFAR-10.
_PAPER_SHARES = {"resnet18": 0.0621, "resnet34": 0.0655, "resnet50": 0.07334, "resnet101": 0.05124, "resnet152": 0.0124}


def hint() -> html.P:
    """What stands where a clicked point will be described."""
    return html.P("Click a point or a picture to see it with its nearest neighbors.", className="hint")


def problem(message: str) -> html.Div:
    """In the place of what cannot be shown; `message` says what to run."""
    return html.Div([html.Strong("Nothing to show yet"), html.P(message)], className="problem", role="alert")


def empty(message: str) -> html.P:
    """Where a list has no entry, and why."""
    return html.P(message, className="hint empty")


def point_lines(state: MapState, row: int) -> list[html.P]:
    """The text about one image: label, what the network sees, score, the filter's reason, and who decided otherwise."""
    points, preview = state.points, state.preview
    seen = points.class_names[points.predicted[row]]
    return [
        html.P(html.Strong(f"#{row}  {points.name(row)}")),
        html.P(f"network: {seen} ({points.confidence[row]:.0%})", className=_suspicion_text(points, row)),
        *_true_label_lines(points, row),
        html.P(["score ", html.B(f"{preview.scores[row]:.3f}"), f" · {_outcome_text(state, row)}"]),
        html.P(["the filter: " if state.settings.scorer_choice != AS_FILTERED else "", points.reasons[row].as_py()]),
        *_decision(state, row),
    ]


def tooltip(state: MapState, row: int) -> list[Any]:
    """What hovering shows."""
    return [picture(state.points, row), *point_lines(state, row)]


def card(state: MapState, row: int) -> list[Any]:
    """What a click shows: the image, and its nearest neighbors with their labels."""
    points = state.points
    neighbors = [tile(state, other) for other in points.neighbors[row].tolist()]
    return [
        html.Div([picture(points, row), html.Div(point_lines(state, row))], className="chosen", **_names(points, row)),
        html.P(points.paths[row].as_py(), className="path"),
        html.H2("Nearest by features"),
        html.Div(neighbors, className="tiles"),
    ]


def tile(state: MapState, row: int) -> html.Button:
    """A picture to click, with its label and what the network sees; its frame says what becomes of the image."""
    fate = "stays" if state.preview.keep[row] else "goes"
    classes = ["tile", fate, *(["hand"] if row in state.preview.overrides else [])]
    return html.Button(
        [picture(state.points, row), html.Span(state.points.name(row)), *_seen(state.points, row)],
        className=" ".join(classes),
        title=f"#{row}, score {state.preview.scores[row]:.3f}: "
        f"{_outcome_text(state, row)}{_true_label_text(state.points, row)}",
        **_names(state.points, row),
    )


def picture(points: Points, row: int) -> html.Img:
    """The image; by the stamp in its address it is that of these points or none, also after `prepare` has run again."""
    return html.Img(src=f"/thumbnail/{row}.png?{points.images_stamp}", alt=f"image {row}: {points.name(row)}")


def legend(colors: Colors, rows: NDArray[np.int64]) -> list[Any]:
    """Return the legend of the map's colors, with the number of images of each, drawn or not."""
    if not isinstance(colors, Groups):
        ground = {"background": f"linear-gradient(90deg, {', '.join(color for _, color in get_colorscale(SCALE))})"}
        return [html.Span("0"), html.Span(className="scale", style=ground), html.Span("1"), html.Span(colors.name)]
    counts = np.bincount(colors.codes[rows], minlength=len(colors.names))
    if len(colors.names) > MAX_NAMES:
        return [html.Span(f"{(counts > 0).sum()} groups; colors repeat, hover to tell them apart")]
    entries = zip(colors.names, colors.colors, counts.tolist(), strict=True)
    return [
        html.Span([html.I(style={"background": color}), name, html.Small(f" {count:,}")])
        for name, color, count in entries
        if count
    ]


def class_table(state: MapState, overall: float, thresholds: NDArray[np.float64]) -> html.Table:
    """Return a table of what goes and stays, in total and by class, next to the output of the filter.

    Args:
        overall: the limit of the classes without one of their own.
        thresholds: (n_classes,) those of the classes.
    """
    points = state.points
    n = len(points.class_names)
    sizes, stays, kept = (
        np.bincount(points.labels[rows], minlength=n)
        for rows in (np.arange(len(points)), state.preview.keep, points.kept)
    )
    lines = [("all", sizes.sum(), stays.sum(), kept.sum(), overall)]
    lines += list(zip(points.class_names, sizes, stays, kept, thresholds, strict=True))
    body = [
        html.Tr(
            [
                html.Th(name, title=name),
                *(html.Td(text) for text in (f"{size:,}", f"{1 - stay / size:.1%}", f"{stay:,}", f"{filter_kept:,}")),
                html.Td(f"{threshold:.3g}"),
            ]
        )
        for name, size, stay, filter_kept, threshold in lines
        if size
    ]
    head = ("class", "images", "goes", "stays", "filter kept", "limit")
    return html.Table(
        [html.Caption(_paper(points)), html.Thead(html.Tr([html.Th(text) for text in head])), html.Tbody(body)]
    )


def difference_line(a: FilterPreview, b: FilterPreview) -> html.P:
    """How much two settings agree, in numbers."""
    dropped = ~a.keep, ~b.keep
    both, either = int((dropped[0] & dropped[1]).sum()), int((dropped[0] | dropped[1]).sum())
    jaccard = f"{both / either:.3f}" if either else "none"
    return html.P(
        f"A drops {dropped[0].sum():,}, B drops {dropped[1].sum():,}, both {both:,}; Jaccard index {jaccard}."
    )


def _paper(points: Points) -> str:
    share = _PAPER_SHARES.get(points.network)
    if share is None:
        return ""
    return f"In the paper (table I) {points.network} drops {share:.2%} of CIFAR-10; it says nothing of single classes."


def _seen(points: Points, row: int) -> list[html.Span]:
    """What the network sees where that is not the label, and the true class where the label was changed on purpose."""
    lines = []
    if points.predicted[row] != points.labels[row]:
        lines.append(html.Span(f"→ {points.class_names[points.predicted[row]]}", className="doubt"))
    if points.true_labels is not None and points.planted[row]:
        lines.append(html.Span(f"true: {points.class_names[points.true_labels[row]]}", className="truth"))
    return lines


def _true_label_lines(points: Points, row: int) -> list[html.P]:
    words = _true_label_text(points, row)
    return [html.P(words.removeprefix("; "), className="truth")] if words else []


def _true_label_text(points: Points, row: int) -> str:
    if points.true_labels is None or not points.planted[row]:
        return ""
    return f"; label changed on purpose, the true one is {points.class_names[points.true_labels[row]]}"


def _decision(state: MapState, row: int) -> list[html.P]:
    """What a person decided of the image, when and why."""
    line = state.preview.overrides.get(row)
    if line is None:
        return []
    when = f", {line.timestamp}" if line.timestamp else ""
    note: list[Any] = [": ", html.Q(line.note)] if line.note else []
    return [html.P([f"{line.decision} by hand{when}", *note])]


def _names(points: Points, row: int) -> dict[str, Any]:
    """By these, what is shown can be decided; Dash takes any attribute that begins so, which its types do not say."""
    return {"data-row": str(row), "data-generation": points.generation}


def _outcome_text(state: MapState, row: int) -> str:
    fate = "stays" if state.preview.keep[row] else "goes"
    return f"{fate} by hand" if row in state.preview.overrides else fate


def _suspicion_text(points: Points, row: int) -> str:
    return "" if points.predicted[row] == points.labels[row] else "doubt"


NAMES = ("both keep", "only A drops", "only B drops", "both drop")


def differences(a: FilterPreview, b: FilterPreview) -> Groups:
    """Which of the two drops each of N images, human decisions included."""
    codes = (~a.keep).astype(np.uint8) + 2 * (~b.keep).astype(np.uint8)
    return Groups(codes=codes, names=NAMES, colors=(NOISE, SERIES[1], SERIES[0], SERIES[3]))
