"""Take the pictures of docs/images again, from a finished project and its running visualizer.

    python docs/tooling/screenshots.py PROJECT [NAME ...]

PROJECT has params.yaml and data/; work on a copy, since decisions are made in the pictures of the review. It needs
Chromium and the package playwright.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

from pipeline.paths import DataPaths  # noqa: E402
from tests.fixtures.browser_app import open_page, serve_app  # noqa: E402
from tests.fixtures.chromium import ARGUMENTS, CHROMIUM  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

_FOLDER = ROOT / "docs" / "images"
_COLORS = 256
_SMALL, _LARGE, _PHONE = (1280, 720), (1400, 900), (420, 900)


def _report(page: Page, project: Path, url: str) -> None:  # noqa: ARG001 - as the others
    page.goto(DataPaths(root=project / "data").report_page.as_uri())
    page.locator(".js-plotly-plot svg.main-svg").first.wait_for()


def _exported(page: Page, project: Path, url: str) -> None:  # noqa: ARG001 - as the others
    page.goto((project / "map.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    page.locator("#grid button").first.click()


def _view(query: str) -> Callable[[Page, Path, str], None]:
    def show(page: Page, project: Path, url: str) -> None:  # noqa: ARG001 - as the others
        open_page(page, f"{url}{query}")

    return show


def _pictures(page: Page, project: Path, url: str) -> None:  # noqa: ARG001 - as the others
    page.goto(f"{url}?width=pictures&size=96")
    page.locator("#grid .tile").first.wait_for()


def _review(page: Page, project: Path, url: str) -> None:  # noqa: ARG001 - as the others
    page.goto(f"{url}?view=review")
    page.locator("#review .large").wait_for()
    for key in "kdd":
        page.keyboard.press(key)
        page.wait_for_timeout(700)


# Size, color scheme, and what opens the page.
_PICTURES: dict[str, tuple[tuple[int, int], Literal["dark", "light"], Callable[[Page, Path, str], None]]] = {
    "report": (_LARGE, "light", _report),
    "report-dark": (_LARGE, "dark", _report),
    "report-phone": (_PHONE, "light", _report),
    "viz-map": (_SMALL, "light", _view("?color=class&image=21")),
    "viz-pictures": (_SMALL, "light", _pictures),
    "viz-compare": (_LARGE, "light", _view("?view=compare&list=differ&scorer-b=label_odds&share-b=10")),
    "viz-dark": (_LARGE, "dark", _view("?color=reason&image=21")),
    "viz-review": (_LARGE, "light", _review),
    "viz-phone": (_PHONE, "light", _review),
    "viz-export": (_SMALL, "light", _exported),
    "viz-export-phone": (_PHONE, "light", _exported),
}


@contextmanager
def _served(project: Path) -> Iterator[str]:
    files = ["--params", str(project / "params.yaml"), "--data", str(project / "data")]
    subprocess.run([sys.executable, "-m", "viz", "export", str(project / "map.html"), *files], cwd=ROOT, check=True)
    with serve_app(project) as url:
        yield url


def main() -> None:
    """Write the named pictures, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_PICTURES))
    arguments = parser.parse_args()
    project = arguments.project.resolve()
    with _served(project) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for name in arguments.names or _PICTURES:
            (width, height), scheme, show = _PICTURES[name]
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            show(page, project, url)
            # Charts and the tooltips of the pointer settle.
            page.mouse.move(width // 2, 2)
            page.wait_for_timeout(2500)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            small = picture.quantize(_COLORS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            small.save(_FOLDER / f"{name}.png", optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
