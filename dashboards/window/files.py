"""The files of the page, read once: no path that a client names reaches the disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Response

#: The page, its style sheets and scripts, and what was vendored.
STATIC = Path(__file__).with_name("static")
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file as a browser gets it."""

    content: bytes
    media_type: str


def read_files(folder: Path = STATIC) -> dict[str, PageFile]:
    """Path below `folder` -> file, of those that a browser is given."""
    files = (path for path in sorted(folder.rglob("*")) if path.suffix in _TYPES)
    return {path.relative_to(folder).as_posix(): PageFile(path.read_bytes(), _TYPES[path.suffix]) for path in files}


def page_files() -> APIRouter:
    """Routes of the page and its files."""
    router = APIRouter()
    files = read_files()

    @router.get("/")
    async def page() -> Response:
        return _reply(files["index.html"])

    @router.get("/static/{path:path}")
    async def file(path: str) -> Response:
        if path not in files:
            raise HTTPException(404, f"file: got {path!r}, which the page does not have")
        return _reply(files[path])

    return router


def _reply(file: PageFile) -> Response:
    return Response(file.content, media_type=file.media_type)
