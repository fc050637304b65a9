"""A real headless Chromium for the tests of the page."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # for the modules beside this file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """At the path CHROMIUM, else on PATH, else Playwright's own; without a sandbox, which root has none of."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--enable-precise-memory-info"])
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end nothing was said on its console, and nobody else was asked for anything."""
    said, asked, opened = [], [], []

    def open_page(url: str, before=lambda page: None, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        opened.append(context)
        page.home = url
        before(page)
        page.goto(url)
        page.wait_for_selector(".finding")
        return page

    yield open_page
    own = tuple(page.home.split("?")[0] for context in opened for page in context.pages)
    for context in opened:
        context.close()
    assert [url for url in asked if not url.startswith(own)] == []
    assert [line for line in said if "status of 4" not in line and "net::ERR" not in line] == []
