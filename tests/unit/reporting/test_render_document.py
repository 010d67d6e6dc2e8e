"""The report as Markdown: it has the page's numbers, and names are not interpreted as markup."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.params import Params
from pipeline.paths import DataPaths
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.render import markdown_table, render_document, render_page, report_content
from pipeline.reporting.summary import build_summary
from pipeline.stats.tables import Table
from tests.fixtures.report import CLASS_NAMES, default_outcome, figures_without_pictures, params_with, write_artifacts

markdown_it: Any = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")

_CHARTS = ("accuracy", "differences", "learning", "progress", "test_loss")
FIGURES = [*(f"digits.{name}.svg" for name in _CHARTS), "resnet18.dropped.png"]


class Rendered(HTMLParser):
    """What a reader sees of Markdown: text, cells by row, and the elements."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(markdown_it.MarkdownIt("commonmark").enable("table").render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def render(params: Params, data: DataPaths) -> tuple[str, list[Table]]:
    """The document, and the tables that the page shows."""
    summary = build_summary(load_report_inputs(params, data))
    content = report_content(params, summary)
    # The page has no table of these for a study without a published figure.
    absent = ("agreements", "verdicts", "warmups", "sentences")
    shown = [table for name, table in content["tables"].items() if name not in absent]
    for study in content["studies"]:
        shown += [study["accuracy_table"], study["pooled_table"], study["difference_table"]]
        shown += study["class_tables"].values()
    return render_document(params, summary, FIGURES), shown


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Table]]:
    data, params = DataPaths(root=tmp_path_factory.mktemp("data")), params_with(["resnet18"])
    write_artifacts(data, params)
    return render(params, data)


def test_every_table_of_the_page_is_there_cell_for_cell(made: tuple[str, list[Table]]) -> None:
    document, tables = made
    rows = Rendered(document).rows
    for table in tables:
        for cells in (table.columns, *table.rows):
            assert [" ".join(cell.split()) for cell in cells] in rows


@pytest.mark.parametrize("figure", [None, "gahlot-2020-fig4"])
def test_claims_are_in_a_document_that_has_a_published_figure(figure: str | None, tmp_path: Path) -> None:
    data, params = DataPaths(root=tmp_path), params_with(["resnet18"], paper_figure=figure)
    write_artifacts(data, params)
    summary = build_summary(load_report_inputs(params, data))
    document = render_document(params, summary, FIGURES)
    content = report_content(params, summary)
    assert (markdown_table(content["tables"]["sentences"]) in document) == (figure is not None)


@pytest.mark.parametrize("figure", [None, "gahlot-2020-fig4"])
def test_the_paper_is_named_where_a_study_is_about_it(figure: str | None, tmp_path: Path) -> None:
    grid = {"batch_sizes": [32, 128], "learning_rates": [0.05, 0.1], "seeds": [0, 1]}
    data, params = DataPaths(root=tmp_path), params_with(["resnet18"], paper_figure=figure, **grid)
    write_artifacts(data, params)
    summary = build_summary(load_report_inputs(params, data))
    document = render_document(params, summary, FIGURES)
    assert "A slope above 0 means that" in document
    assert "The size with the highest top-1" in document
    for text in ("the paper's claim is tested at equal steps", "show this as fig. 4", "Gahlot", "paper'"):
        assert (text in document) == (figure is not None), text


class Notes(HTMLParser):
    """Paragraphs of a page: those of class `muted` in `muted`."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.muted: list[str] = []
        self.text = ""
        self._muted = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "p":
            self._muted = ("class", "muted") in attrs
            self.muted += [""] if self._muted else []

    def handle_endtag(self, tag: str) -> None:
        self._muted = self._muted and tag != "p"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._muted:
            self.muted[-1] += data


OF_THE_PAGE = (
    "The scales of embeddings and feature spaces differ",
    "The most suspect first",
    "Point at an image",
    "Steps and images until",
)
"""Beginnings of notes that only the page has, or that the document words differently."""


def test_the_document_has_the_notes_of_the_page(tmp_path: Path) -> None:
    data, params = DataPaths(root=tmp_path), params_with()
    sampled = {"critical_batch": 1234.0, "critical_batch_low": 900.0}
    write_artifacts(data, params, lambda row: {**default_outcome(row), **sampled})
    summary = build_summary(load_report_inputs(params, data))
    figures = figures_without_pictures({"digits": dict.fromkeys(_CHARTS, "")}, params.networks)
    page = Notes(render_page(params, summary, figures))
    document = markdown_it.MarkdownIt("commonmark").render(render_document(params, summary, FIGURES))
    said = Notes(document).text
    notes = [note for note in page.muted if not note.startswith(OF_THE_PAGE)]
    assert len(notes) > 10
    assert [note for note in notes if note not in said] == []


def test_hostile_names_stay_text_and_figures_are_separate_files(made: tuple[str, list[Table]]) -> None:
    rendered = Rendered(made[0])
    assert {*CLASS_NAMES} <= {row[0] for row in rendered.rows}
    assert not {tag for tag, _ in rendered.tags} & {"script", "a", "iframe"}
    images = [attributes["src"] for tag, attributes in rendered.tags if tag == "img"]
    assert images == [f"figures/{name}" for name in FIGURES]


def test_the_primary_verdict_comes_first(made: tuple[str, list[Table]]) -> None:
    primary, secondary = (made[0].index(f"filtered against {control} at ") for control in ("random", "full"))
    assert made[0].index("##") < primary < secondary < made[0].index("###")
    assert not re.search(r"\n{3}", made[0])


def test_a_study_without_results_says_why(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], seeds=[0]), DataPaths(root=tmp_path)
    write_artifacts(data, params, lambda _: {"status": "skipped", "reason": "<b> | too large", "steps": None})
    assert any("<b> | too large" in row for row in Rendered(render(params, data)[0]).rows)


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), min_size=1, max_size=4))
def test_whatever_stands_in_a_cell_is_read_back(cells: list[tuple[str, str]]) -> None:
    visible = [tuple("".join(c for c in cell if c.isprintable()) for cell in row) for row in cells]
    table = Table(columns=["a", "b"], text=frozenset({"a"}), rows=visible)
    expected = [["a", "b"], *([" ".join(cell.split()) for cell in row] for row in visible)]
    assert Rendered(markdown_table(table)).rows == expected
