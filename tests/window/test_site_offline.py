"""The documents' site, opened as files in a real headless Chromium: it asks nobody for anything, its search finds."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.window
playwright = pytest.importorskip("playwright.sync_api")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return out


def test_the_site_opened_as_files_asks_nobody_and_its_search_finds(site: Path) -> None:
    asked, said = [], []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: said.append(str(error)))
        for name in ("index.html", "monitoring.html", "repository/index.html"):
            page.goto((site / name).as_uri())
        page.fill(".md-search__input", "rollback")
        page.wait_for_selector(".md-search-result__link[href*='commands.html']")
        browser.close()
    assert asked
    assert [url for url in asked if not url.startswith((site.as_uri(), "data:", "blob:"))] == []
    assert said == []
