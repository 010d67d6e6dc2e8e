"""The report as one HTML page that needs nothing beside itself."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from markupsafe import Markup
from ruamel.yaml import YAML

from pipeline.config.params import Params
from pipeline.reporting import comparison_tables, tables
from pipeline.reporting.costs import ArmCost, Records
from pipeline.reporting.drawing import DroppedImage
from pipeline.reporting.summary import Summary
from pipeline.stats import study_tables, wording
from viz.figures.palette import NOISE, class_color
from viz.figures.rendering import plotly_script


@dataclass(frozen=True, kw_only=True)
class PageFigures:
    """What the page shows beside text and tables.

    Attributes:
        studies: study -> chart name -> markup.
        filter: chart name -> markup.
        maps: network -> split -> data URI.
        dropped: network -> gallery.
    """

    studies: Mapping[str, Mapping[str, str]]
    filter: Mapping[str, str]
    maps: Mapping[str, Mapping[str, str]]
    dropped: Mapping[str, list[DroppedImage]]


def render_page(
    params: Params, summary: Summary, figures: PageFigures, resources: Records, costs: Sequence[ArmCost]
) -> str:
    """The whole page. Names of classes and files are escaped wherever they stand.

    Args:
        resources: what each stage took; all else on the page but `costs` is decided by `summary`.
        costs: what each arm took in all.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.reporting", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=wording.percent, count=wording.count, plural=wording.plural)
    confidence = params.report.confidence
    return environment.get_template("template.html").render(
        params=params,
        parameters_yaml=_as_yaml(params),
        summary=summary,
        data=summary["data"][0],
        confidence=confidence,
        classes=[(row["class"], class_color(index)) for index, row in enumerate(summary["networks"][0]["classes"])],
        noise_color=NOISE,
        tables={
            "kept": tables.kept_table(summary["networks"]),
            "agreements": tables.agreement_table(summary["agreements"]),
            "extractors": tables.extractor_table(summary["networks"], confidence),
            "classes": tables.class_table(summary["networks"]),
            "costs": tables.cost_table(costs),
            "resources": tables.resource_table(resources),
            "versions": tables.version_table(summary["versions"]),
            "digests": tables.digest_table(summary["digests"]),
        },
        studies=[_study(study, params, confidence) for study in summary["studies"]],
        charts={
            "studies": {name: _markup(charts) for name, charts in figures.studies.items()},
            "filter": _markup(figures.filter),
        },
        maps=figures.maps,
        dropped=figures.dropped,
        plotly=Markup(plotly_script()),
        zip=zip,
    )


def _study(study: Summary, params: Params, confidence: float) -> dict[str, Any]:
    return {
        **study,
        "config": params.studies[study["name"]],
        "common": study_tables.common_settings(study),
        "pooled_table": comparison_tables.pooled_table(study),
        "class_tables": {
            row["control"]: comparison_tables.class_difference_table(row, confidence)
            for row in study["pooled"]
            if row["images"]
        },
        "accuracy_table": study_tables.accuracy_table(study, confidence),
        "difference_table": study_tables.difference_table(study, confidence),
        "critical_batch_table": study_tables.critical_batch_table(study),
        "excluded_table": study_tables.excluded_table(study),
    }


def _markup(charts: Mapping[str, str]) -> dict[str, Markup]:
    """Plotly's own output; the names in it were escaped when it was drawn."""
    return {name: Markup(chart) for name, chart in charts.items()}


def _as_yaml(params: Params) -> str:
    stream = io.StringIO()
    writer = YAML()
    writer.width = 100
    writer.dump(params.model_dump(mode="json"), stream)
    text: str = stream.getvalue()
    return text
