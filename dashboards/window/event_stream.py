"""The event stream of one tab: what changed, once a second; or that the board cannot be read, and since when."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from fastapi.sse import ServerSentEvent

from .panel_log import PanelLogs
from .panels import Asked
from .readings import READ_EVERY_S, Readings, View

#: Names this process in the ids of events: a tab that comes back to another process gets every panel.
BOOT = secrets.token_hex(4)


def event_id(view_number: int) -> str:
    """Of the event that tells of a view."""
    return f"{BOOT}-{view_number}"


def view_number(last_id: str) -> int:
    """Of the view that a tab has, by the id of its last event; 0 where it has none of this process."""
    boot, _, number = last_id.partition("-")
    return int(number) if boot == BOOT and number.isdecimal() and len(number) < 16 else 0


async def events(
    readings: Readings,
    logs: PanelLogs,
    *,
    speculator: str,
    asked: Asked,
    last_id: str,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[ServerSentEvent]:
    """An event per reading, until the readings are closed; also where nothing changed, so that the tab hears something.

    `speculator` may be empty: the first one, once there is one.
    """
    has = view_number(last_id)
    began = readings.clock()
    while not readings.is_closed:
        names = await readings.names()
        name = speculator or next(iter(names), "")
        named = {"speculator": name, "speculators": names}
        why = await readings.why_unknown(name)
        view = View(number=0, at=began, look=None, trouble=why, since=began) if why else await readings.current(name)
        if view.look is None:
            has = 0  # what the tab shows is grey now, so it needs every panel again
            yield _event("trouble", {**named, "message": view.trouble, "since": view.since}, "")
        else:
            panels = (await asyncio.to_thread(logs.updated, name, asked, view)).since(has)
            has = view.number
            yield _event("panels", {**named, "at": view.look.seen.at, "panels": panels}, event_id(view.number))
        await pause(READ_EVERY_S)


def _event(name: str, told: object, made_id: str) -> ServerSentEvent:
    raw = msgspec.json.encode(told).decode()
    return ServerSentEvent(raw_data=raw, event=name, id=made_id or None, retry=1000)
