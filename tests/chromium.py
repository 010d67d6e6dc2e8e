"""A real Chromium, and pages that must neither complain nor ask for anything outside."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request

_CHROMIUM = shutil.which("chromium")
_ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--use-angle=swiftshader"]
# This machine's own server is not outside.
_INSIDE = ("file:", "data:", "blob:", "http://127.0.0.1:", "http://localhost:")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    if _CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian's package chromium)")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=_CHROMIUM, args=_ARGUMENTS)
        yield running
        running.close()


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember for the page's fixture whether the test has failed."""
    report = yield
    item.stash[_FAILED] = report.failed
    return report


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    """An empty page; the test fails if it meets an error in the console or asks for an address outside.

    Where the test has failed, `end.png` in its `tmp_path` shows the page as it was.
    """
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    opened = context.new_page()
    problems: list[str] = []

    def heed_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def heed_error(error: Error) -> None:
        problems.append(str(error))

    def heed_request(request: Request) -> None:
        if not request.url.startswith(_INSIDE):
            problems.append(f"asked for {request.url}")

    opened.on("console", heed_console)
    opened.on("pageerror", heed_error)
    opened.on("request", heed_request)
    yield opened
    if request.node.stash[_FAILED]:
        opened.screenshot(path=tmp_path / "end.png")
    context.close()
    assert not problems, problems
