"""MkDocs hook of the documents' site: the navigation, and pages for files outside docs/ that documents link to.

docs/index.md says which page answers which question, and is the navigation: a section per question, each page in the
first that names it.
A link out of docs/ leads, on the site, to a page under repository/: Markdown as it is, a folder as a list of what is in
it, any other text as it stands. What is linked but not there is left alone, so that `mkdocs build --strict` refuses it.
Lists are written as GitHub reads them, and are made what Python-Markdown takes for the same.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
#: Where pages from outside docs/ stand on the site.
OUTSIDE = "repository"
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?=[#)])")
_QUESTION = re.compile(r"^\| (?P<question>[^|]+) \| (?P<documents>.+) \|$", re.MULTILINE)
_ITEM = re.compile(r"(?P<mark>[-*]|\d+\.) ")
_IMAGES = {".png", ".svg"}


def on_config(config: Any) -> Any:
    """Set the navigation."""
    page = (Path(config.docs_dir) / "index.md").read_text(encoding="utf-8")
    config.nav = [{"Documents by question": "index.md"}, *navigation(page)]
    return config


def navigation(index: str) -> list[dict[str, list[str]]]:
    """A section per row of the first table of docs/index.md, with the pages that no section before it names."""
    table = index[index.index("|---|") :].partition("\n\n")[0]
    seen: set[str] = set()
    sections = []
    for row in _QUESTION.finditer(table):
        pages = dict.fromkeys(site_uri(path) for path in linked(row["documents"], "docs") if path.endswith(".md"))
        new = [page for page in pages if page not in seen]
        seen.update(new)
        if new:
            sections.append({row["question"].strip(): new})
    return sections


def on_files(files: Files, config: Any) -> Files:
    """Add what is linked outside docs/, and what that links to in turn."""
    waiting = [path for file in files.documentation_pages() for path in linked(file.content_string, "docs")]
    while waiting:
        path = waiting.pop()
        uri = site_uri(path)
        if path.startswith("docs/") or not (ROOT / path).exists() or files.get_file_from_path(uri):
            continue
        added = _file(path, uri, config)
        files.append(added)
        if added.is_documentation_page():
            waiting += linked(added.content_string, _folder(path))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001 - MkDocs names them
    """Point links at where their files stand on the site."""
    here = page.file.src_uri
    inside = here.removeprefix(f"{OUTSIDE}/")
    source = inside if inside != here else f"docs/{here}"
    is_listed = (
        (ROOT / posixpath.dirname(source)).is_dir() and here.endswith("/index.md") and not (ROOT / source).exists()
    )
    folder = posixpath.dirname(source) if is_listed else _folder(source)
    return with_lists(_with_links(markdown, lambda path: _moved(path, folder, posixpath.dirname(here), files)))


def site_uri(path: str) -> str:
    """Where the file at `path`, from the repository's root, stands among the sources of the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{OUTSIDE}/{path}/index.md"
    is_kept = Path(path).suffix in {".md", *_IMAGES}
    return f"{OUTSIDE}/{path}" if is_kept else f"{OUTSIDE}/{path}.md"


def linked(markdown: str, folder: str) -> Iterator[str]:
    """Paths from the repository's root of what a page in `folder` links to, outside of its code."""
    for part in _CODE.split(markdown)[::2]:
        yield from (_joined(folder, found["path"]) for found in _LINK.finditer(part))


def with_lists(markdown: str) -> str:
    """Blank lines where a list begins or a block in it ends, and what belongs to a numbered item indented by four."""
    lines: list[str] = []
    is_code = is_numbered = False
    for line in markdown.splitlines():
        item = None if is_code else _ITEM.match(line)
        before = lines[-1] if lines else ""
        if item:
            is_numbered = item["mark"] not in {"-", "*"}
            if before.strip() and (before.lstrip().startswith("```") or not _is_in_list(lines)):
                lines.append("")
        elif line.strip() and not line.startswith(" "):
            is_numbered = False
        is_code ^= line.lstrip().startswith("```")
        lines.append(f" {line}" if is_numbered and line.startswith("   ") else line)
    return "\n".join(lines)


def _is_in_list(lines: list[str]) -> bool:
    """Whether the last paragraph of `lines` began as an item of a list."""
    first = next((index for index in range(len(lines), 0, -1) if not lines[index - 1].strip()), 0)
    return any(_ITEM.match(line) for line in lines[first:])


def _with_links(markdown: str, moved: Callable[[str], str]) -> str:
    parts = _CODE.split(markdown)
    parts[::2] = [_LINK.sub(lambda found: moved(found["path"]), part) for part in parts[::2]]
    return "".join(parts)


def _moved(path: str, folder: str, here: str, files: Files) -> str:
    uri = site_uri(_joined(folder, path))
    return posixpath.relpath(uri, here or ".") if files.get_file_from_path(uri) else path


def _file(path: str, uri: str, config: Any) -> File:
    source = ROOT / path
    if source.is_dir():
        names = sorted(entry.name for entry in source.iterdir() if entry.suffix in {".md", *_IMAGES})
        listed = "\n".join(f"- [{name}]({name})" for name in names)
        return File.generated(config, uri, content=f"# {path}\n\n{listed}\n")
    if source.suffix in {".md", *_IMAGES}:
        return File.generated(config, uri, abs_src_path=str(source))
    text = source.read_text(encoding="utf-8")
    return File.generated(config, uri, content=f"# {source.name}\n\n```{source.suffix[1:] or 'text'}\n{text}```\n")


def _folder(path: str) -> str:
    return path if (ROOT / path).is_dir() else posixpath.dirname(path)


def _joined(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))
