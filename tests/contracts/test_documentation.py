"""README.md is short, links have a target, banned words are absent, and generated pages are current."""

import html
import json
import re
import runpy
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fixtures.banned_words import banned_patterns
from tests.fixtures.source_tree import ROOT

_DOCS = ROOT / "docs"
_PAGES = [ROOT / "README.md", *sorted(_DOCS.rglob("*.md"))]
_GENERATED = _DOCS / "reference" / "params.md"
# Pages that programs wrote with a measured result.
_RECORDS = sorted(_DOCS.glob("results/*/20*/**/*.md"))
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")

each_page = pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _prose(page: Path) -> str:
    return _CODE.sub("", page.read_text(encoding="utf-8"))


@cache
def _anchors(page: Path) -> frozenset[str]:
    """Return the anchors of the headings, as code hosts and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    texts = [html.unescape(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)).lower() for line in lines]
    return frozenset(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text)) for text in texts)


def _dead_links(text: str, page: Path) -> list[str]:
    dead = []
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target.resolve())):
            dead.append(link)
    return dead


def _without_list(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page == _DOCS / "style.md":
        before, _, after = text.partition("## Banned words")
        text = before + after[after.index("\n## ") :]
    return _LINK.sub("]", _CODE.sub("", text))


def test_the_front_page_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1300


def test_the_glossary_has_30_terms_at_most_in_order() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (_DOCS / "glossary.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    terms = rows[1:]
    assert 20 <= len(terms) <= 30
    assert terms == sorted(set(terms))


@each_page
def test_links_have_a_target(page: Path) -> None:
    assert _dead_links(_prose(page), page) == []


def test_dead_links_are_recognized() -> None:
    text = (
        "[a](no-such-page.md) [b](glossary.md#no-such-heading) [c](#links) [d](https://example.org) [e](style.md#code)"
    )
    assert _dead_links(text, _DOCS / "glossary.md") == ["no-such-page.md", "glossary.md#no-such-heading", "#links"]


@pytest.mark.parametrize(
    "page",
    [ROOT / "CHANGELOG.md", *(page for page in _PAGES if page != _GENERATED and page not in _RECORDS)],
    ids=lambda page: page.stem,
)
def test_banned_words_are_absent(page: Path) -> None:
    text = _without_list(page)
    assert [match[0] for pattern in banned_patterns() for match in pattern.finditer(text)] == []


def test_banned_words_are_recognized() -> None:
    banned = banned_patterns()
    for text in ("Beside it", "kept for good", "it was judged", "Neighbours", "initialisation", "labelled"):
        assert any(pattern.search(text) for pattern in banned), text
    for text in ("besides", "good", "neighbors", "mended", "withdrawn", "initialization"):
        assert not any(pattern.search(text) for pattern in banned), text


def test_the_page_of_parameters_is_current() -> None:
    program = runpy.run_path(str(_DOCS / "tooling" / "params_page.py"))
    page = program["params_page"](json.loads(program["SCHEMA"].read_text(encoding="utf-8")))
    assert _GENERATED.read_text(encoding="utf-8") == page, "run `python docs/tooling/params_page.py`"
    # A key of a scorer, of a recipe that `train` shares, and of a study.
    for row in ("| `min_samples` | integer > 0 | `5` |", "### train.optimizer: lars", "| `looks` | list of integer"):
        assert row in page


def test_the_page_of_refused_input_is_current() -> None:
    program = runpy.run_path(str(_DOCS / "tooling" / "refusals_page.py"))
    page = program["refusals_page"](program["GOLDEN"])
    assert program["PAGE"].read_text(encoding="utf-8") == page, "run `python docs/tooling/refusals_page.py`"
    assert page.count("\n| ") - 2 * page.count("\n|---") >= 150
    assert "\n|  |" not in page, "each line has its input"
    # No file of refusals is left out.
    names = {path.stem for path in program["GOLDEN"].glob("*.txt") if "refus" in path.stem}
    assert names <= {name for files in program["_SECTIONS"].values() for name in files}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None or find_spec("material") is None, reason="needs the extra docs")
def test_the_site_is_built_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert {"index.html", "architecture.html"} <= {page.name for page in pages}
    for page in pages:
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]+https?://[^>]+>", page.read_text(encoding="utf-8"))
        assert loaded == [], page
    assert (tmp_path / "source/pipeline/training/step.py.txt").is_file(), "a file that README.md links to"
