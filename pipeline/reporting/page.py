"""The report as one HTML page that needs nothing beside itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup

from pipeline.config.params import Params
from pipeline.reporting.content import report_content, templates
from pipeline.reporting.drawing import DroppedImage, data_uri
from pipeline.reporting.landscape import Landscapes
from pipeline.reporting.plans import PlanHistories
from pipeline.reporting.summary import Summary
from viz.figures.palette import N_CLASS_COLORS, NOISE, class_color
from viz.figures.rendering import plotly_script


@dataclass(frozen=True, kw_only=True)
class PageFigures:
    """What the page shows beside text and tables.

    Attributes:
        studies: study -> chart name -> markup.
        filter: chart name -> markup.
        warmups: markup of the best warm-ups; None without studies that tell them.
        maps: network -> `train`, `test` or `noise` -> data URI.
        dropped: network -> gallery.
    """

    studies: Mapping[str, Mapping[str, str]]
    filter: Mapping[str, str]
    warmups: str | None = None
    maps: Mapping[str, Mapping[str, str]]
    dropped: Mapping[str, list[DroppedImage]]


def render_page(
    params: Params,
    summary: Summary,
    figures: PageFigures,
    landscapes: Landscapes = MappingProxyType({}),
    plans: PlanHistories = MappingProxyType({}),
) -> str:
    """The whole page, its arguments those of `report_content`. Names are escaped wherever they stand.

    With more classes than colours a legend would name several by each.
    """
    classes = [row["class"] for row in summary["networks"][0]["classes"]]
    return (
        templates(autoescape=True)
        .get_template("template.html")
        .render(
            **report_content(params, summary, landscapes, plans),
            classes=[(name, class_color(index)) for index, name in enumerate(classes)],
            n_class_colors=N_CLASS_COLORS,
            noise_color=NOISE,
            charts={
                "studies": {name: _markup(charts) for name, charts in figures.studies.items()},
                "filter": _markup(figures.filter),
                "warmups": Markup(figures.warmups or ""),
            },
            slices={name: data_uri("image/svg+xml", found["figure"]) for name, found in landscapes.items()},
            maps=figures.maps,
            dropped=figures.dropped,
            plotly=Markup(plotly_script()),
            zip=zip,
        )
    )


def _markup(charts: Mapping[str, str]) -> dict[str, Markup]:
    """Plotly's own output; the names in it were escaped when it was drawn."""
    return {name: Markup(chart) for name, chart in charts.items()}
