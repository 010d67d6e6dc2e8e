"""The exported page: everything in one HTML file that runs nothing but its own two scripts."""

import base64
import hashlib
import html
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pipeline.artifacts.atomic import atomic_path
from viz.export.content import Content
from viz.figures.rendering import plotly_script

# In the order in which they use one another.
_SCRIPTS = ("data.js", "csv.js", "pictures.js", "map.js", "page.js")


def write_page(file: Path, content: Content) -> None:
    """Write the page, atomically; equal content gives equal bytes.

    Raises:
        InputError: the disk is full.
    """
    with atomic_path(file) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as text:
        for part in _page(content):
            text.write(part)


def _page(content: Content) -> Iterator[str]:
    plotly, script = plotly_script(), "\n".join(_asset(name) for name in _SCRIPTS)
    head, tail = Template(_asset("page.html")).substitute(
        title=html.escape(f"batchsieve: {content.about['network']}"),
        policy=content_security_policy(plotly, script),
        style=_asset("style.css"),
    ).split("<!-- data -->")  # fmt: skip
    yield head
    yield _block("about", "application/json", _json_in_html(content.about))
    for name, packed in content.columns.items():
        yield _block(f"column-{name}", "text/plain", base64.b64encode(packed).decode("ascii"))
    for number, sheet in enumerate(content.sheets):
        yield _block(f"sheet-{number}", "text/plain", base64.b64encode(sheet).decode("ascii"))
    yield f"<script>{plotly}</script>\n<script>{script}</script>\n"
    yield tail


def content_security_policy(*scripts: str) -> str:
    """Only these scripts run, by their SHA-256, and no connection is made, whatever markup gets into the page.

    Plotly puts style elements into the page and compiles what it draws with WebGL, hence the two exceptions;
    neither lets text that became markup run.
    """
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes} 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _block(identifier: str, media_type: str, text: str) -> str:
    """Data that no browser runs; `text` holds no `<`."""
    return f'<script type="{media_type}" id="{identifier}">{text}</script>\n'


def _json_in_html(value: Any) -> str:
    """JSON in which nothing can end the element that it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("viz.export").joinpath("assets", name).read_text(encoding="utf-8")
