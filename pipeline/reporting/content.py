"""What the page and the Markdown document both say: every table, and the words about the studies."""

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jinja2
from ruamel.yaml import YAML

from pipeline.config.params import Params
from pipeline.reporting import comparison_tables, tables, warmup_tables
from pipeline.reporting.best_batch import best_batch_table
from pipeline.reporting.convergence import convergence_sections
from pipeline.reporting.landscape import Landscapes, landscape_sentences, landscape_table
from pipeline.reporting.plans import PlanHistories, plan_sentences
from pipeline.reporting.planted import planted_headline, planted_statements
from pipeline.reporting.published import NETWORK_FIGURES, THROUGHPUT
from pipeline.reporting.sentences import sentence_table, slope_table
from pipeline.reporting.summary import Summary
from pipeline.stats import study_tables, wording


def report_content(
    params: Params,
    summary: Summary,
    landscapes: Landscapes = MappingProxyType({}),
    plans: PlanHistories = MappingProxyType({}),
) -> dict[str, Any]:
    """Names and values for the templates.

    Args:
        landscapes: what `python -m pipeline landscape` measured, where it ran.
        plans: what the ledger has of the plans of studies with a `plan` section. All else is decided by `params` and
            `summary`.
    """
    confidence = params.report.confidence
    return {
        "params": params,
        "parameters_yaml": _as_yaml(params),
        "summary": summary,
        "data": summary["data"][0],
        "planted": [
            {"headline": planted_headline(entry), "statements": planted_statements(entry, summary["studies"])}
            for entry in summary["planted"]
        ],
        "confidence": confidence,
        "verdict_counts": comparison_tables.verdict_counts(summary["studies"]),
        "tables": {
            "verdicts": comparison_tables.verdict_table(summary["studies"], confidence),
            "sentences": sentence_table(summary["sentences"], confidence),
            "kept": tables.kept_table(summary["networks"]),
            "agreements": tables.agreement_table(summary["agreements"]),
            "extractors": tables.extractor_table(summary["networks"], confidence),
            "classes": tables.class_table(summary["networks"]),
            "warmups": warmup_tables.warmup_table(summary["warmup_laws"], confidence),
            "versions": tables.version_table(summary["versions"]),
            "digests": tables.digest_table(summary["digests"]),
        },
        "network_figures": NETWORK_FIGURES,
        "throughput": THROUGHPUT,
        "studies": [
            {
                **_study(study, params, confidence, landscapes.get(study["name"])),
                "plan_sentences": plan_sentences(study["name"], params, plans.get(study["name"])),
            }
            for study in summary["studies"]
        ],
        "warmup_slopes": [warmup_tables.slope_sentence(law, confidence) for law in summary["warmup_laws"]],
    }


def templates(*, autoescape: bool) -> jinja2.Environment:
    """The templates beside this module; a name that they ask for and do not get is an error.

    Args:
        autoescape: whether they write HTML, otherwise Markdown.
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
    environment.filters.update(percent=wording.percent, count=wording.count, plural=wording.plural)
    return environment


def _study(study: Summary, params: Params, confidence: float, measured: Mapping[str, Any] | None) -> dict[str, Any]:
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
        "slope_table": slope_table(study, confidence),
        "published_table": study["published"] and comparison_tables.published_table(study["published"], confidence),
        "accuracy_table": study_tables.accuracy_table(study, confidence),
        "best_batch_table": best_batch_table(study, confidence),
        "difference_table": study_tables.difference_table(study, confidence),
        "critical_batch_table": study_tables.critical_batch_table(study),
        "convergence_sections": convergence_sections(study),
        "landscape": measured,
        "landscape_table": landscape_table(study, measured) if measured else None,
        "landscape_sentences": landscape_sentences(study, measured) if measured else [],
        "excluded_table": study_tables.excluded_table(study),
    }


def _as_yaml(params: Params) -> str:
    stream = io.StringIO()
    writer = YAML()
    writer.width = 100
    writer.dump(params.model_dump(mode="json"), stream)
    text: str = stream.getvalue()
    return text
