"""Shares of images that go: per class, and as the threshold grows."""

from collections.abc import Mapping, Sequence

from plotly import graph_objects as go

from viz.figures.palette import SERIES
from viz.figures.rendering import plotly_layout, plotly_log_axis, plotly_text


def class_share_chart(class_names: Sequence[str], shares: Mapping[str, Sequence[float]]) -> go.Figure:
    """Bars of the share of each class that is noise, in percent, one series per network.

    Args:
        shares: network -> one share per class, 0 to 1.
    """
    height = 130 + len(class_names) * max(22, 12 * len(shares))
    layout = plotly_layout(x_title="images of the class called noise (%)", y_title="", height=height)
    # Classes read from the top down, as in the table; two of one name keep a bar each.
    rows = list(range(len(class_names)))
    names = [plotly_text(name) for name in class_names]
    layout["yaxis"] |= {"autorange": "reversed", "tickvals": rows, "ticktext": names, "showgrid": False}
    layout["xaxis"] |= {"rangemode": "tozero"}
    figure = go.Figure(layout=layout | {"barmode": "group", "showlegend": len(shares) > 1})
    for index, (network, values) in enumerate(shares.items()):
        figure.add_trace(
            go.Bar(
                y=rows,
                x=[100 * value for value in values],
                orientation="h",
                name=network,
                text=names,
                textposition="none",
                marker={"color": SERIES[index % len(SERIES)]},
                hovertemplate="%{text}: %{x:.2f} % noise",
            )
        )
    return figure


def eps_chart(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    chosen: Mapping[str, tuple[float, float]],
    *,
    unit: str,
) -> go.Figure:
    """Share that goes against the threshold, with a mark where each network's filter stands.

    Args:
        curves: network -> (thresholds, share of the images that exceed them, 0 to 1).
        chosen: network -> the same pair for the threshold in use; networks without a single one are missing.
        unit: what the thresholds are, "eps (map units)".
    """
    layout = plotly_layout(x_title=f"{unit}, log scale", y_title="images that exceed it (%)")
    layout["yaxis"] |= {"rangemode": "tozero"}
    layout["xaxis"] |= plotly_log_axis(value for eps, _ in curves.values() for value in eps)
    figure = go.Figure(layout=layout)
    for index, (network, (eps, shares)) in enumerate(curves.items()):
        color = SERIES[index % len(SERIES)]
        figure.add_trace(
            go.Scatter(
                x=list(eps),
                y=[100 * share for share in shares],
                name=network,
                mode="lines",
                line={"color": color},
                hovertemplate="%{x:.3g}: %{y:.2f} % exceed it",
            )
        )
        if network not in chosen:
            continue
        figure.add_trace(
            go.Scatter(
                x=[chosen[network][0]],
                y=[100 * chosen[network][1]],
                name=f"{network}: in use",
                mode="markers",
                marker={"color": color, "size": 12, "symbol": "x"},
                hovertemplate="in use: %{x:.4g}, %{y:.2f} % exceed it",
            )
        )
    return figure
