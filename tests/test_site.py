"""The documents' site: it builds strictly, navigates to every page once, and asks no other host for anything."""

import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HOOK = ".ci/site_pages.py"
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


@pytest.mark.parametrize(
    "line",
    [
        '<script src="https://unpkg.com/mermaid"></script>',
        '<img src="//example.org/badge.svg">',
        '<link rel="preload stylesheet" href="https://fonts.googleapis.com/css">',
    ],
)
def test_a_request_to_another_host_is_found(line: str) -> None:
    harmless = '<link rel="canonical" href="https://example.org/"><a href="https://example.org/">b</a>'
    assert len(other_hosts(Page(harmless + line))) == 1


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


def test_lists_and_tables_are_rendered_as_such(pages) -> None:
    broken = {
        name: [text for text in page.paragraphs if re.search(r"(\A|\n) *([-*|] |\d+\. )", text)]
        for name, page in pages.items()
    }
    assert {name: texts for name, texts in broken.items() if texts} == {}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository of a few pages with this one's configuration."""
    for name in (HOOK, "mkdocs.yml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "code" / "tables").mkdir(parents=True)
    (tmp_path / "code" / "run.py").write_text("print('[no](link.md)')\n", encoding="utf-8")
    (tmp_path / "code" / "tables" / "one.md").write_text("# One\n\n[up](../../docs/one.md#part)\n", encoding="utf-8")
    (tmp_path / "README.md").write_text(
        "# Front\n\n## Try it\n\n[one](docs/one.md), [run](code/run.py)\n", encoding="utf-8"
    )
    rows = "| use it | [one](one.md), [front](../README.md#try-it) |\n| change it | [one](one.md) |\n"
    table = f"| you | read |\n|---|---|\n{rows}"
    (tmp_path / "docs" / "index.md").write_text(f"# Index\n\n{table}\nMore.\n", encoding="utf-8")
    (tmp_path / "docs" / "one.md").write_text(
        "# One\n\n## Part\n\n[tables](../code/tables) `[a](b.md)`\n", encoding="utf-8"
    )
    return tmp_path


def test_what_is_linked_outside_the_documents_has_its_page(house: Path) -> None:
    done = build(house, house / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.relative_to(house / "out").as_posix() for path in (house / "out").rglob("*.html")} - {"404.html"}
    outside = {"index.html", "code/run.py.html", "code/tables/index.html", "code/tables/one.html"}
    assert made == {"index.html", "one.html", *(f"repository/{name}" for name in outside)}
    read = lambda name: (house / "out" / name).read_text(encoding="utf-8")  # noqa: E731 - beside the lines that use it
    assert 'href="repository/index.html#try-it"' in read("index.html")
    assert 'href="repository/code/tables/index.html"' in read("one.html")
    assert "[a](b.md)" in read("one.html")  # code stays as it is
    assert 'href="../../../one.html#part"' in read("repository/code/tables/one.html")
    assert 'href="code/run.py.html"' in read("repository/index.html")


@pytest.mark.parametrize(
    ("link", "named"),
    [
        ("gone.md", "gone.md"),
        ("one.md#gone", "#gone"),
        ("../gone.py", "../gone.py"),
        ("../README.md#gone", "#gone"),
        ("/one.md", "/one.md"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(house: Path, link: str, named: str) -> None:
    with (house / "docs" / "one.md").open("a", encoding="utf-8") as page:
        page.write(f"\n[there]({link})\n")
    done = build(house, house / "out")
    assert done.returncode != 0
    assert named in done.stdout + done.stderr


def test_a_document_that_no_reader_is_told_of_fails_the_build(house: Path) -> None:
    (house / "docs" / "lost.md").write_text("# Lost\n", encoding="utf-8")
    done = build(house, house / "out")
    assert done.returncode != 0
    assert "lost.md" in done.stdout + done.stderr


@pytest.fixture(scope="module")
def hook():
    spec = spec_from_file_location("site_pages", ROOT / HOOK)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lists_as_github_reads_them_are_lists_for_the_site_too(hook) -> None:
    fenced = ["   ```", "   - code", "   ```"]
    written = [
        "Can:",
        "- one",
        "  more",
        "- two",
        "",
        "1. first",
        "",
        *fenced,
        "2. second",
        "   more",
        "",
        "end",
        "```",
        "- code",
    ]
    indented = [f" {line}" for line in fenced]
    made = [
        "Can:",
        "",
        "- one",
        "  more",
        "- two",
        "",
        "1. first",
        "",
        *indented,
        "",
        "2. second",
        "    more",
        "",
        "end",
        "```",
        "- code",
    ]
    assert hook.with_lists("\n".join(written)).splitlines() == made


def test_a_page_is_in_the_section_of_the_first_reader_it_is_for(hook) -> None:
    rows = ["| use it | [a](a.md#x), `code`, [b](../B.md); [c](https://c/) |", "| run it | [b](../B.md), [d](d.md) |"]
    index = "\n".join(
        ["# T", "", "| you | read |", "|---|---|", *rows, "| look | [a](a.md) |", "", "| e | [e](e.md) |"]
    )
    assert hook.navigation(index) == [{"Use it": ["a.md", "repository/B.md"]}, {"Run it": ["d.md"]}]
