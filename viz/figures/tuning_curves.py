"""Accuracy of every trial of a search over its epochs, with the moment at which it was eliminated."""

from collections.abc import Sequence
from dataclasses import dataclass

from plotly import graph_objects as go

from viz.figures.rendering import plotly_layout, plotly_text

_WINNER, _OTHER, _AFTERWARDS = "#0072b2", "#888888", "#d55e00"


@dataclass(frozen=True, kw_only=True)
class TrialCurve:
    """One trial.

    Attributes:
        name: for the pointer.
        accuracies: 0 to 1, after each epoch from the first.
        searched: how many of them the search trained; the others came afterwards.
        eliminated_after: the epoch, or None.
    """

    name: str
    accuracies: Sequence[float]
    searched: int
    winner: bool
    eliminated_after: int | None


def tuning_chart(curves: Sequence[TrialCurve]) -> go.Figure:
    """Plotly chart; a cross marks an elimination, a dotted line what was trained after it."""
    layout = plotly_layout(x_title="epochs", y_title="accuracy on the val rows (%)")
    figure = go.Figure(layout=layout | {"showlegend": False, "hovermode": "closest"})
    for curve in sorted(curves, key=lambda one: one.winner):
        color = _WINNER if curve.winner else _OTHER
        figure.add_trace(_line(curve, 1, curve.searched, color=color, dash="solid"))
        if len(curve.accuracies) > curve.searched:
            figure.add_trace(
                _line(curve, curve.searched, len(curve.accuracies), color=_AFTERWARDS, dash="dot")
            )  # fmt: skip
        if curve.eliminated_after is not None:
            figure.add_trace(_cross(curve, curve.eliminated_after))
    return figure


def _line(curve: TrialCurve, first: int, last: int, *, color: str, dash: str) -> go.Scatter:
    return go.Scatter(
        x=list(range(first, last + 1)),
        y=[100 * accuracy for accuracy in curve.accuracies[first - 1 : last]],
        name=plotly_text(curve.name),
        mode="lines+markers",
        line={"color": color, "dash": dash, "width": 3 if curve.winner else 1},
        marker={"size": 4},
        hovertemplate=f"{plotly_text(curve.name)}<br>epoch %{{x}}: %{{y:.2f}} %<extra></extra>",
    )


def _cross(curve: TrialCurve, epoch: int) -> go.Scatter:
    return go.Scatter(
        x=[epoch],
        y=[100 * curve.accuracies[epoch - 1]],
        name=plotly_text(curve.name),
        mode="markers",
        marker={"symbol": "x", "size": 9, "color": _OTHER},
        hovertemplate=f"{plotly_text(curve.name)}<br>eliminated after epoch %{{x}}<extra></extra>",
    )
