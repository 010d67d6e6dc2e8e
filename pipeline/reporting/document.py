"""The report as Markdown, for repositories, issues and papers; its figures are the files beside it."""

import re
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from pipeline.config.params import Params
from pipeline.reporting.content import report_content, templates
from pipeline.reporting.landscape import Landscapes
from pipeline.reporting.plans import PlanHistories
from pipeline.reporting.summary import Summary
from pipeline.stats.study_tables import Table

_SPECIAL = re.compile(r"([\\`*_\[\]<>|$&~#])")


def render_document(
    params: Params,
    summary: Summary,
    figures: Sequence[str],
    landscapes: Landscapes = MappingProxyType({}),
    plans: PlanHistories = MappingProxyType({}),
) -> str:
    """The page's text and tables, in its order; the arguments are those of `report_content`.

    Args:
        figures: names of the files in figures/, beside the document.
    """
    environment = templates(autoescape=False)
    environment.filters.update(table=markdown_table, escape_markdown=escaped)
    template = environment.get_template("template.md")
    text = template.render(**report_content(params, summary, landscapes, plans), figures=figures)
    # What a study lacks leaves its blank lines.
    return re.sub(r"\n{3,}", "\n\n", text)


def markdown_table(table: Table) -> str:
    """GitHub's pipe table: numbers to the right, and nothing in a cell taken for markup."""
    rule = [":---" if column in table.text else "---:" for column in table.columns]
    rows = [_row(map(escaped, cells)) for cells in (table.columns, *table.rows)]
    return "\n".join([rows[0], _row(rule), *rows[1:]])


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
