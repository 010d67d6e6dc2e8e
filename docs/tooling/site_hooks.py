"""Hooks of mkdocs: README.md and CHANGELOG.md become pages, and files outside docs/ that pages link to join the site.

Pages keep the relative links that a code host follows. In the site a link to a file outside docs/ leads to a copy of it
as text, and a link to a folder is its text alone.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_DOCS = Path(__file__).resolve().parents[1]
_ROOT = _DOCS.parent
_PAGES = {"index.md": _ROOT / "README.md", "changelog.md": _ROOT / "CHANGELOG.md"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/, and a copy of every other file there that a page links to."""
    for uri, source in _PAGES.items():
        files.append(File.generated(config, uri, content=_relinked(source.read_text(encoding="utf-8"), source, uri)))
    pages = [*_PAGES.values(), *(Path(file.abs_src_path) for file in files.documentation_pages() if file.abs_src_path)]
    for target in sorted({target for page in pages for target in _outside(page)}):
        files.append(File.generated(config, _copy(target), abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the links of a page in docs/ into those of the site."""
    if page.file.src_uri in _PAGES:
        return markdown
    return _relinked(markdown, _DOCS / page.file.src_uri, page.file.src_uri)


def _outside(page: Path) -> set[Path]:
    """Files outside docs/ that a page links to, but for those that are pages."""
    links = (match[3] for match in _LINK.finditer(page.read_text(encoding="utf-8")))
    targets = {_target(page, link) for link in links}
    return {
        path for path in targets
        if path is not None and path.is_file() and _DOCS not in path.parents and path not in _PAGES.values()
    }  # fmt: skip


def _target(page: Path, link: str) -> Path | None:
    path = link.partition("#")[0]
    return None if not path or re.match(r"[a-z]+:", link) else Path(os.path.normpath(page.parent / path))


def _copy(target: Path) -> str:
    """Where the site has a file of the repository: as text, which browsers show."""
    return f"source/{target.relative_to(_ROOT).as_posix()}.txt"


def _relinked(markdown: str, page: Path, uri: str) -> str:
    def replace(match: re.Match[str]) -> str:
        image, text, link = match.groups()
        target = _target(page, link)
        if target is None:
            return match[0]
        if target.is_dir():
            return text
        pages = {source: name for name, source in _PAGES.items()}
        if target in pages:
            there = pages[target]
        elif _DOCS in target.parents:
            there = target.relative_to(_DOCS).as_posix()
        else:
            there = _copy(target)
        anchor = link.partition("#")[2]
        relative = os.path.relpath(there, Path(uri).parent) + (f"#{anchor}" if anchor else "")
        return f"{image}[{text}]({relative})"

    # Code is left as it is.
    parts = re.split(r"(^```.*?^```$|`[^`\n]*`)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("`") else _LINK.sub(replace, part) for part in parts)
