"""A real Chromium, and pages that must neither complain nor ask for anything outside."""

import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright", reason="the package playwright is not installed")
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

# A busy machine is slow, not wrong.
expect.set_options(timeout=30_000)

_CHROMIUM = shutil.which("chromium")
_ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--use-angle=swiftshader"]
# This machine's own server is not outside.
_INSIDE = ("file:", "data:", "blob:", "http://127.0.0.1:", "http://localhost:")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if _CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian's package chromium)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=_CHROMIUM, args=_ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page; the test fails if it meets an error in the console or asks for an address outside."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    opened = context.new_page()
    problems: list[str] = []

    def heed(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    opened.on("console", heed)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: request.url.startswith(_INSIDE) or problems.append(request.url))
    yield opened
    context.close()
    assert not problems
