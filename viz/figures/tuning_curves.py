"""Accuracy of every trial of a search over its epochs, with the moment at which it was eliminated."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from plotly import graph_objects as go

from viz.figures.palette import NOISE, SERIES
from viz.figures.rendering import matplotlib_style, plotly_layout, plotly_text

_WINNER, _AFTERWARDS, _OTHER = SERIES[0], SERIES[1], NOISE
_X_TITLE, _Y_TITLE = "epochs", "accuracy on the val rows (%)"


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
    layout = plotly_layout(x_title=_X_TITLE, y_title=_Y_TITLE)
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


def tuning_figure(curves: Sequence[TrialCurve]) -> Figure:
    """The same as a matplotlib figure for papers, with a legend of what is there."""
    with matplotlib_style():
        figure = Figure(figsize=(5.5, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel=_X_TITLE, ylabel=_Y_TITLE)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = {}
        for curve in sorted(curves, key=lambda one: one.winner):
            epochs = range(1, len(curve.accuracies) + 1)
            percent = [100 * accuracy for accuracy in curve.accuracies]
            group = curve.name.replace(" ", "-")  # by which a drawing program finds the line in the file
            color, width = (_WINNER, 2.0) if curve.winner else (_OTHER, 1.0)
            (handles["winner" if curve.winner else "other trials"],) = axes.plot(
                epochs[: curve.searched], percent[: curve.searched], color=color, linewidth=width, marker="o",
                markersize=2.5, gid=group,
            )  # fmt: skip
            if len(percent) > curve.searched:
                (handles["trained afterwards"],) = axes.plot(
                    epochs[curve.searched - 1 :],
                    percent[curve.searched - 1 :],
                    color=_AFTERWARDS,
                    linestyle=":",
                    gid=f"{group}-afterwards",
                )
            if curve.eliminated_after is not None:
                (handles["eliminated"],) = axes.plot(
                    curve.eliminated_after,
                    percent[curve.eliminated_after - 1],
                    color=_OTHER,
                    linestyle="",
                    marker="x",
                    gid=f"{group}-eliminated",
                )
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, fontsize=8)
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
