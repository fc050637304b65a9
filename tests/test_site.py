"""The documents' site: it builds strictly, navigates to every page once, and asks no other host for anything."""

import os
import re
import subprocess
import sys
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Attributes that make a browser fetch, by element; a link does so for these relations alone.
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "link": "href",
}
FETCHED_RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}


def build(root: Path, out: Path) -> subprocess.CompletedProcess:
    """MkDocs as `make site` runs it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


class Page(HTMLParser):
    """What a browser fetches for a page, where its navigation leads, and the text of its paragraphs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.navigation: list[str] = []
        self.paragraphs: list[str] = []
        self._is_in_paragraph = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        relations = set(found.get("rel", "").split())
        if tag in FETCHED and (tag != "link" or relations & FETCHED_RELATIONS):
            self.fetched.append(found.get(FETCHED[tag], ""))
        if tag == "a" and "md-nav__link" in found.get("class", "").split():
            self.navigation.append(found["href"])
        if tag == "p":
            self._is_in_paragraph = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_in_paragraph &= tag != "p"

    def handle_data(self, data: str) -> None:
        if self._is_in_paragraph:
            self.paragraphs[-1] += data


def other_hosts(page: Page) -> list[str]:
    return [url for url in page.fetched if re.match(r"(https?:)?//", url)]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    found = {path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert found.keys() >= {"index.html", "faults.html", "repository/index.html", "repository/LICENSE.html"}
    return found


def test_every_document_is_in_the_navigation_exactly_once(pages) -> None:
    # A page that is not in the navigation itself shows it without links into its own contents.
    leads = [Path("repository", href).as_posix() for href in pages["repository/LICENSE.html"].navigation]
    inside = [os.path.normpath(lead) for lead in leads]
    documents = sorted(path.with_suffix(".html").name for path in (ROOT / "docs").glob("*.md"))
    assert sorted(lead for lead in inside if "/" not in lead) == documents
    assert {"repository/index.html", "repository/CHANGELOG.html", "repository/CONTRIBUTING.html"} <= set(inside)


def test_no_page_asks_another_host(pages) -> None:
    assert {name: urls for name, page in pages.items() if (urls := other_hosts(page))} == {}
    assert all(page.fetched for page in pages.values())


def test_no_style_asks_another_host_and_nothing_needs_mermaid(site: Path) -> None:
    styles = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    assert styles
    assert [path for path, text in styles.items() if re.search(r"(url\(|@import)\s*[\"']?\s*(https?:)?//", text)] == []
    # Material would fetch Mermaid from another host for a page with such a diagram.
    assert [path for path in site.rglob("*.html") if 'class="mermaid"' in path.read_text(encoding="utf-8")] == []


def test_what_the_search_needs_without_a_server_is_as_it_was_released(pages) -> None:
    vendor = ROOT / "docs" / "vendor"
    lines = (vendor / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert {name: sha256((vendor / name).read_bytes()).hexdigest() for name in listed} == listed
    assert {path.name for path in vendor.iterdir()} == {*listed, "SHA256SUMS"}
    script = next(name for name in listed if name.endswith(".js"))
    assert [
        name for name, page in pages.items() if not any(url.endswith(f"vendor/{script}") for url in page.fetched)
    ] == []
