"""Who may ask: the names under which this page is reached, and no page of another origin. Headers on every answer."""

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Names of this machine that every page is reached by.
LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))

#: On every answer: nothing from elsewhere is loaded, run, framed or told of this page.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
_OWN = frozenset(name for name, _ in _RAW_HEADERS)


class Guard:
    """Middleware: refuses requests that a page of another origin made, or that reached us by another name.

    The first keeps foreign pages from acting; the second keeps them from reading, by a name of theirs that they let
    point to this machine.
    """

    def __init__(self, app: App, allowed_hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in _RAW_HEADERS}
                message["headers"] = [
                    *(h for h in message.get("headers", []) if h[0].lower() not in own),
                    *_RAW_HEADERS,
                ]
            await send(message)

        refused = self.refusal(scope["method"], _headers(scope))
        if refused:
            await _refuse(send_with_headers, refused)
        else:
            await self._app(scope, receive, send_with_headers)

    def refusal(self, method: str, headers: Mapping[str, str]) -> str:
        """Why a request with these headers (lower-case names) is refused; empty when it is not."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        if host_name(f"//{host}") not in self._hosts:
            return f"Host: got {host!r}, expected one of {sorted(self._hosts)}; `paceline window --allow-host` adds one"
        if origin is None:
            return "" if method in {"GET", "HEAD"} else "Origin: got none, expected this page's own"
        if urlsplit(origin).netloc.lower() != host.lower():
            return f"Origin: got {origin!r}, expected that of {host!r}"
        return ""


def host_name(url: str) -> str:
    """Name in a URL, without port and brackets; empty where it has none."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _headers(scope: Scope) -> dict[str, str]:
    """By lower-case name; of a header that comes twice, both, which no check accepts."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


async def _refuse(send: Send, why: str) -> None:
    body = msgspec.json.encode({"refused": why})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
