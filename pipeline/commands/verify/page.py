"""Compare the page of a report with the derived one: everything but its figures is equal.

Figures are what other versions of matplotlib and plotly draw otherwise: the bytes of images, the values that plotly
draws and the images that the pointer finds, and the library plotly.js. The text, tags, styles and scripts of the page
are those of this project, so a difference outside figures is a contradiction. A figure that differs must be no code.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.commands.verify.findings import Findings

_MISSING = "missing"
_CONTEXT = 30
_BEGIN = re.compile(r"<script(?=[\s/>])[^<>]*>", re.IGNORECASE)
_END = re.compile(r"</script(?=[\s/>])", re.IGNORECASE)
# All images of the page are in it, and no quotation mark is in their bytes.
_IMAGE = re.compile(r'(src="data:[^",]*,)[^"]*')
_LIBRARY = re.compile(r"^/\*\*\s*\* plotly\.js v([\w.+-]+)\s")
_CHART = re.compile(r"Plotly\.newPlot\((.*)\)", re.DOTALL)
_VALUES = '<script type="application/json">'


class _Part(NamedTuple):
    """A part of a page: the text up to a script, with its tag, or the content of a script, after its tag `of`."""

    text: str
    of: str = ""


def compare_pages(path: Path, page: str, findings: Findings) -> int:
    """Compare a page with the derived one, up to the first difference.

    Returns:
        The number of lines outside figures.
    """
    recorded = path.read_text(encoding="utf-8", errors="replace")
    notes = []
    for part, other in itertools.zip_longest(_parts(recorded), _parts(page), fillvalue=_Part(_MISSING)):
        if part == other:
            continue
        if part.of != other.of or not _is_another_figure(part, other):
            item = "script" if other.of else "text"
            findings.differs(path, item, *parting(part.text, other.text))
            break
        notes.append(_version_note(part, other))
    else:
        if recorded != page:
            findings.notes.append(
                f"{path}: its text is as derived, its figures are not; other versions draw them otherwise"
            )
        findings.notes += [f"{path}: {note}" for note in notes if note]
    return sum(part.text.count("\n") + 1 for part in _parts(page) if not part.of)


def parting(line: str, other: str) -> tuple[str, str]:
    """Return both from a few words before the first difference, so that a long line shows it."""
    same = (a == b for a, b in zip(line, other, strict=False))
    common = sum(1 for _ in itertools.takewhile(bool, same))
    start = max(0, common - _CONTEXT)
    prefix = "..." if start else ""
    return prefix + line[start:], prefix + other[start:]


def _parts(page: str) -> Iterator[_Part]:
    """Yield the parts of a page, without the bytes of images, in time proportional to its length, whoever wrote it."""
    position = 0
    while begin := _BEGIN.search(page, position):
        yield _Part(_IMAGE.sub(r"\1", page[position : begin.end()]))
        end = _END.search(page, begin.end())
        # Without an end a browser shows nothing that follows.
        position = end.start() if end else len(page)
        yield _Part(page[begin.end() : position], of=begin[0])
    yield _Part(_IMAGE.sub(r"\1", page[position:]))


def _is_another_figure(script: _Part, derived: _Part) -> bool:
    """Return whether a script is a figure, as the derived one is, and runs no other code."""
    if not derived.of:
        return False
    if here := _LIBRARY.match(derived.text):
        found = _LIBRARY.match(script.text)
        return found is not None and found[1] != here[1]
    # Plotly and the page escape it. After `<!--` a browser ends a script elsewhere.
    if "<" in script.text:
        return False
    if derived.of == _VALUES:
        return _values(script.text) is not None
    found, here = _CHART.fullmatch(script.text), _CHART.fullmatch(derived.text)
    if found is None or here is None:
        return False
    chart, expected = _values(f"[{found[1]}]"), _values(f"[{here[1]}]")
    # The element, data, layout and configuration. The first and the last one are this project's.
    return (
        isinstance(chart, list)
        and isinstance(expected, list)
        and len(chart) == len(expected)
        and (chart[0], chart[-1]) == (expected[0], expected[-1])
    )


def _values(text: str) -> object:
    """Return what a text has as JSON; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _version_note(script: _Part, derived: _Part) -> str:
    found, here = _LIBRARY.match(script.text), _LIBRARY.match(derived.text)
    if found is None or here is None:
        return ""
    return (
        f"has plotly.js {found[1]}, and {here[1]} is installed here; the library is not compared, and could change "
        "what the page shows, so read report.md"
    )
