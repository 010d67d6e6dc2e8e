"""`verify` on report.html: nothing but figures may be other than derived, and figures are no code."""

from pathlib import Path

import pytest

from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.provenance import _digest_of_record, sha256_of_file
from pipeline.commands.verify.findings import Findings
from pipeline.commands.verify.page import _parts, compare_pages
from pipeline.figures.rendering import plotly_html
from tests.fixtures.forgeries import data_of
from tests.fixtures.verified import run_verify, write_whole_report

_CHART = (
    '<div id="a"></div>\n<script>Plotly.newPlot("a", [{"y": [1, 2]}], {"height": 1}, {"displaylogo": false})</script>'
)
_PAGE = f"""<head><style>b {{ color: red }}</style>
<script>/**
* plotly.js v3.0.0
* code */ var a;</script></head><body>
<b>61.31</b> <svg width="1"><title>one</title></svg>
<img src="data:image/png;base64,AAAA" alt="map">
<script type="application/json">{{"x": [1, 2]}}</script>
{_CHART}
<script type="module">hover()</script>
</body>"""


def _compare(tmp_path: Path, recorded: str) -> Findings:
    path, findings = tmp_path / "report.html", Findings()
    path.write_text(recorded)
    compare_pages(path, _PAGE, findings)
    return findings


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("61.31", "99.99"),
        ("61.31", "<i hidden>61.31</i><svg-x>99.99</svg-x><svg></svg>"),
        ("61.31", "<!-- <svg> -->99.99<!-- </svg> -->"),
        ("<b>61.31</b>", '<b title="61.31">61.31</b>'),
        ("</body>", "<script>document.body.innerHTML = ''</script></body>"),
        ("</body>", ""),
        ("color: red", "display: none"),
        ("<title>one", "<title>two"),
        ("hover()", "forge()"),
        ("var a;", "var b;"),
        ("* plotly.js v3.0.0", "* forged v2.0.0"),
        ('{"x": [1, 2]}', "forge()"),
        ('{"x": [1, 2]}', '{"x": "<!--<script>"}'),
        ('[{"y": [1, 2]}]', "forge()"),
        ('Plotly.newPlot("a"', 'Plotly.newPlot("b"'),
        ('false})', 'false});forge()'),
        ("displaylogo", "plotlyServerURL"),
        ('base64,AAAA" alt', 'base64,AAAA" onload="forge()" alt'),
        ("image/png", "text/html"),
        ("<script type=\"module\">", "<script-x>"),
    ],
)  # fmt: skip
def test_a_difference_outside_figures_is_a_line(old: str, new: str, tmp_path: Path) -> None:
    assert old in _PAGE
    findings = _compare(tmp_path, _PAGE.replace(old, new))
    assert len(findings.differences) == 1
    assert not findings.notes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AAAA", "BBBB"),
        ('{"y": [1, 2]}', '{"y": [1, 2.5], "zorder": 0}'),
        ('{"height": 1}', "{}"),
        ('{"x": [1, 2]}', '{"x": [3]}'),
        ("v3.0.0\n* code */ var a;", "v4.1.1\n* code */ var b;"),
    ],
)
def test_figures_of_another_version_are_a_note(old: str, new: str, tmp_path: Path) -> None:
    assert old in _PAGE
    findings = _compare(tmp_path, _PAGE.replace(old, new))
    assert findings.differences == []
    assert len(findings.notes) == 1 + ("v4.1.1" in new)


def test_an_equal_page_has_no_note(tmp_path: Path) -> None:
    findings = _compare(tmp_path, _PAGE)
    assert (findings.differences, findings.notes) == ([], [])


def test_charts_are_those_that_plotly_writes() -> None:
    from plotly import graph_objects as go

    assert [part.of for part in _parts(plotly_html(go.Figure(), element_id="a"))] == ["", "<script>", ""]


def test_a_page_is_read_in_linear_time() -> None:
    """Backtracking over these would take hours."""
    many = 100_000
    assert len([*_parts("<script " * many)]) == 1
    assert len([*_parts("<script >" * many)]) == 3
    assert len([*_parts('src="data:' * many)]) == 1
    assert [part.text for part in _parts("one<SCRIPT x>hidden")] == ["one<SCRIPT x>", "hidden", ""]


def _sign(folder: Path, *, without: str = "") -> None:
    """Write the provenance of the report again, as of the files that are there."""
    path = data_of(folder).provenance("report")
    record = {key: value for key, value in read_json(path).items() if key != "sha256"}
    files = {name: path.parent / name for name in record["outputs"] if not without or without not in name}
    record["outputs"] = {name: sha256_of_file(file) for name, file in files.items() if file.is_file()}
    write_json(path, {**record, "sha256": _digest_of_record(record)})


def test_a_whole_report_is_compared(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As written; with a number of the page changed; without summary.json; and with a figure that no record names."""
    write_whole_report(project)
    data = data_of(project)
    code, lines = run_verify(project, capsys)
    assert (code, [line for line in lines if "report.html" in line]) == (0, [])
    page, document = data.report_page.read_text(), data.report_document.read_text()
    summary = data.summary.read_text()

    data.report_page.write_text(page.replace("</body>", "<script>forge()</script></body>"))
    code, lines = run_verify(project, capsys)
    assert (code, len([line for line in lines if "report.html: " in line])) == (1, 1)

    data.report_page.write_text(page)
    data.report_document.write_text(document + "forged\n")
    data.summary.unlink()
    _sign(project)
    code, lines = run_verify(project, capsys)
    assert code == 1
    assert any(line.startswith("DIFFERS") and "report.md: lines" in line for line in lines), lines
    assert any(line.startswith("note") and "summary.json: missing" in line for line in lines)

    data.summary.write_text(summary)
    data.report_document.write_text(document)
    (data.figures / "digits.accuracy.svg").write_text("<svg>forged</svg>")
    _sign(project, without="accuracy")
    code, lines = run_verify(project, capsys)
    assert code == 1
    (wrong,) = [line for line in lines if line.startswith("DIFFERS")]
    assert "digits.accuracy.svg" in wrong
