"""Render the report as an HTML page and as Markdown, and the page of a run's costs."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import jinja2
from markupsafe import Markup
from ruamel.yaml import YAML

from pipeline.config.params import Params
from pipeline.figures.palette import NOISE
from pipeline.figures.rendering import data_uri, plotly_script
from pipeline.figures.style import N_CLASS_COLORS, class_color
from pipeline.replication.compare_published import claim_table, slope_table
from pipeline.replication.published import NETWORK_FIGURES, THROUGHPUT
from pipeline.reporting import comparison_tables, tables, warmup
from pipeline.reporting.comparison_tables import best_batch_table, convergence_sections
from pipeline.reporting.data_quality import (
    KINDS,
    PictureOfPair,
    duplicates_sentences,
    planted_headline,
    planted_sentences,
)
from pipeline.reporting.embedding_hover import DECISIONS, GRID, EmbeddingPicture
from pipeline.reporting.figures import DroppedImage
from pipeline.reporting.inputs import PlanHistories
from pipeline.reporting.landscape import Landscapes, landscape_sentences, landscape_table
from pipeline.reporting.overview import MAX_CARDS, arm_marks, plan_sentences, studies_by_dropped, study_cards
from pipeline.reporting.summary import Summary, is_about_table_one
from pipeline.reporting.tables import ArmCost, Records, cost_table, resource_table
from pipeline.stats import formatting
from pipeline.stats import tables as stats_tables
from pipeline.stats.batch_size import equivalent_batch_table
from pipeline.stats.tables import Table


def report_content(
    params: Params,
    summary: Summary,
    landscapes: Landscapes = MappingProxyType({}),
    plans: PlanHistories = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the names and values for the templates of page and Markdown: every table, and the text on the studies.

    Args:
        landscapes: measurements of `python -m pipeline landscape`; may be empty.
        plans: the recorded plans of studies with a `plan` section. All else comes from `params` and `summary`.
    """
    confidence, table_one = params.report.confidence, is_about_table_one(summary)
    cards = study_cards(summary, params)
    return {
        "params": params,
        "parameters_yaml": _as_yaml(params),
        "summary": summary,
        "data": summary["data"][0],
        "planted": [
            {"headline": planted_headline(entry), "statements": planted_sentences(entry, summary["studies"])}
            for entry in summary["planted"]
        ],
        "confidence": confidence,
        "verdict_counts": comparison_tables.verdict_counts(summary["studies"]),
        "tables": {
            "verdicts": comparison_tables.verdict_table(summary["studies"], confidence),
            "sentences": claim_table(summary["sentences"]),
            "kept": tables.kept_table(summary["networks"], table_one=table_one),
            "agreements": tables.agreement_table(summary["agreements"]),
            "extractors": tables.extractor_table(summary["networks"], confidence),
            "classes": tables.class_table(summary["networks"]),
            "warmups": warmup.warmup_table(summary["warmup_laws"], confidence),
            "versions": tables.version_table(summary["versions"]),
            "digests": tables.digest_table(summary["digests"]),
        },
        "near_duplicates": {
            network["name"]: duplicates_sentences(network["near_duplicates"])
            for network in summary["networks"]
            if network["near_duplicates"]
        },
        "table_one": table_one,
        "claims_are_tested": any(study["published"] for study in summary["studies"]),
        "network_figures": NETWORK_FIGURES,
        "throughput": THROUGHPUT,
        "studies": [
            {
                **_study(study, params, confidence, landscapes.get(study["name"])),
                "card": card,
                "plan_sentences": plan_sentences(study["name"], params, plans.get(study["name"])),
            }
            for study, card in zip(summary["studies"], cards, strict=True)
        ],
        "as_rows": len(cards) > MAX_CARDS,
        "studies_by_dropped": studies_by_dropped(cards),
        "arm_marks": arm_marks(summary["studies"]),
        "warmup_slopes": [warmup.slope_sentence(law, confidence) for law in summary["warmup_laws"]],
    }


@cache
def templates(*, autoescape: bool) -> jinja2.Environment:
    """Return the environment of the templates in this folder; an undefined name is an error.

    Args:
        autoescape: True for HTML, False for Markdown.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.reporting", "."),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["html"] = autoescape
    environment.filters.update(
        percent=formatting.percent, count=formatting.count, plural=formatting.plural, margin=formatting.margin_text
    )
    return environment


def _study(study: Summary, params: Params, confidence: float, measured: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        **study,
        "config": params.studies[study["name"]],
        "common": stats_tables.common_settings(study),
        "pooled_table": comparison_tables.pooled_table(study),
        "class_tables": {
            row["control"]: comparison_tables.class_difference_table(row, confidence)
            for row in study["pooled"]
            if row["images"]
        },
        "slope_table": slope_table(study),
        "published_table": study["published"] and comparison_tables.published_table(study["published"], confidence),
        "accuracy_table": stats_tables.accuracy_table(study, confidence),
        "best_batch_table": best_batch_table(study, confidence),
        "difference_table": stats_tables.difference_table(study, confidence),
        "equivalent_batch_table": study["equivalent_batch"]
        and equivalent_batch_table(study["equivalent_batch"], confidence, params.report.margin),
        "critical_batch_table": stats_tables.critical_batch_table(study),
        "convergence_sections": convergence_sections(study),
        "landscape": measured,
        "landscape_table": landscape_table(study, measured) if measured else None,
        "landscape_sentences": landscape_sentences(study, measured) if measured else [],
        "excluded_table": stats_tables.excluded_table(study),
    }


def _as_yaml(params: Params) -> str:
    stream = io.StringIO()
    writer = YAML()
    writer.width = 100
    writer.dump(params.model_dump(mode="json"), stream)
    text: str = stream.getvalue()
    return text


def render_costs(dataset: str, resources: Records, costs: Sequence[ArmCost]) -> str:
    """Render the costs of a run on this machine as one self-contained HTML page.

    The page is not an output of DVC: no two runs take equal time, and equal results must leave dvc.lock unchanged.

    Args:
        dataset: name of the data set.
        resources: time, memory and energy of each stage.
        costs: total cost of each arm.
    """
    arms, stages = cost_table(costs), resource_table(resources)
    return (
        templates(autoescape=True)
        .get_template("costs.html")
        .render(
            dataset=dataset,
            arms=arms,
            stages=stages,
            energy_known=any("energy" in header for table in (arms, stages) for header in table.columns),
            zip=zip,
        )
    )


@dataclass(frozen=True, kw_only=True)
class PageFigures:
    """The figures of the page.

    Attributes:
        studies: study -> chart name -> markup.
        filter: chart name -> markup.
        warmups: markup of the best warm-ups; None without such studies.
        embeddings: network -> `train` or `test` -> picture with the images that the pointer finds.
        panels: network -> data URI of the panels of single classes.
        dropped: network -> images of its gallery.
        pairs: network -> kind -> pairs of near duplicates; may be empty.
    """

    studies: Mapping[str, Mapping[str, str]]
    filter: Mapping[str, str]
    warmups: str | None = None
    embeddings: Mapping[str, Mapping[str, EmbeddingPicture]]
    panels: Mapping[str, str]
    dropped: Mapping[str, list[DroppedImage]]
    pairs: Mapping[str, Mapping[str, list[PictureOfPair]]] = field(default_factory=dict)


def render_page(
    params: Params,
    summary: Summary,
    figures: PageFigures,
    landscapes: Landscapes = MappingProxyType({}),
    plans: PlanHistories = MappingProxyType({}),
) -> str:
    """Render the report as one self-contained HTML page, from the arguments of `report_content`. Names are escaped.

    With more classes than colors a legend would name several classes by one color.
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
            slices={name: data_uri("image/svg+xml", measured["figure"]) for name, measured in landscapes.items()},
            embeddings=_embeddings(figures.embeddings),
            embedding_names={"classes": classes, "decisions": DECISIONS, "grid": GRID},
            panels=figures.panels,
            dropped=figures.dropped,
            pairs=figures.pairs,
            pair_kinds=KINDS,
            plotly=Markup(plotly_script()),
            zip=zip,
        )
    )


def _embeddings(pictures: Mapping[str, Mapping[str, EmbeddingPicture]]) -> dict[str, dict[str, Any]]:
    """Return for each picture its source, the images that the pointer finds as JSON, and their number."""
    return {
        network: {
            split: {"source": source, "points": points._asdict(), "n_points": len(points.x)}
            for split, (source, points) in of_network.items()
        }
        for network, of_network in pictures.items()
    }


def _markup(charts: Mapping[str, str]) -> dict[str, Markup]:
    """Mark plotly's output as safe markup; the names in it are already escaped."""
    return {name: Markup(chart) for name, chart in charts.items()}


_SPECIAL = re.compile(r"([\\`*_\[\]<>|$&~#])")


def render_document(
    params: Params,
    summary: Summary,
    figures: Sequence[str],
    landscapes: Landscapes = MappingProxyType({}),
    plans: PlanHistories = MappingProxyType({}),
) -> str:
    """Render the report as Markdown, for repositories, issues and papers, from the arguments of `report_content`.

    Args:
        figures: names of the files in figures/, next to the document.
    """
    environment = templates(autoescape=False)
    environment.filters.update(table=markdown_table, escape_markdown=escaped)
    template = environment.get_template("template.md")
    text = template.render(**report_content(params, summary, landscapes, plans), figures=figures)
    # Missing sections leave blank lines.
    return re.sub(r"\n{3,}", "\n\n", text)


def markdown_table(table: Table) -> str:
    """Render a GitHub pipe table: numbers right-aligned, and markup in cells escaped."""
    rule = [":---" if column in table.text else "---:" for column in table.columns]
    rows = [_row(map(escaped, cells)) for cells in (table.columns, *table.rows)]
    return "\n".join([rows[0], _row(rule), *rows[1:]])


def escaped(text: str) -> str:
    """Escape text for Markdown, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
