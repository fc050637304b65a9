"""The page's server: panels as JSON, one event stream per tab, two acts, and the files of the page."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from .acts import MAX_BODY, Act, Acts, Doorkeeper, perform
from .attempts import Attempts, Unheard
from .event_stream import events
from .files import page_files
from .guard import Guard
from .panel_log import PanelLogs
from .panels import DEFAULT_SPAN_S, PANELS, Asked, one_panel
from .readings import Readings


def make_app(readings: Readings, acts: Acts, *, allowed_hosts: Collection[str] = ()) -> FastAPI:
    """The whole server. It is reached by `allowed_hosts` and by the names of this machine itself."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for router in (_panel_routes(readings), _act_routes(readings, acts), page_files()):
        app.include_router(router)
    app.add_middleware(Guard, allowed_hosts=allowed_hosts)
    app.add_exception_handler(HTTPException, _refusal)
    return app


def _panel_routes(readings: Readings) -> APIRouter:
    router = APIRouter()
    logs = PanelLogs()

    def asked_choice(span: int = DEFAULT_SPAN_S, draft: Annotated[int | None, Query(ge=0)] = None) -> Asked:
        try:
            return Asked(span, draft)
        except ValueError as error:
            raise HTTPException(422, str(error)) from error

    choice_of = Annotated[Asked, Depends(asked_choice)]

    @router.get("/api/{panel}.json")
    async def panel_json(panel: str, asked: choice_of, speculator: str = "") -> Response:
        if panel not in PANELS:
            raise HTTPException(404, f"panel: got {panel!r}, expected one of {list(PANELS)}")
        name = speculator or next(iter(await readings.names()), "")
        if why := await readings.why_unknown(name):
            return _json_reply(404 if await readings.names() else 503, {"not_known": why})
        view = await readings.current(name)
        if view.look is None:
            return _json_reply(503, {"not_known": view.trouble, "since": view.since})
        return _json_reply(200, await asyncio.to_thread(one_panel, panel, view.look, asked))

    @router.get("/stream", response_class=EventSourceResponse)
    async def stream(
        asked: choice_of,
        speculator: str = "",
        after: str = "",
        last_event_id: Annotated[str, Header()] = "",
    ) -> AsyncIterator[ServerSentEvent]:
        async for event in events(readings, logs, speculator=speculator, asked=asked, last_id=last_event_id or after):
            yield event

    return router


def _act_routes(readings: Readings, acts: Acts) -> APIRouter:
    router = APIRouter()
    door = Doorkeeper(Attempts(), Unheard(acts.record_unheard))

    async def do(act: Act, name: str, request: Request, token: str) -> Response:
        raw = await _body(request)
        told = await asyncio.to_thread(perform, act, name, raw=raw, token=token, door=door, now=time.time)
        if told.status == 200:
            readings.forget()
        return _json_reply(told.status, told.body)

    @router.post("/acts/promote")
    async def promote(request: Request, x_paceline_token: Annotated[str, Header()] = "") -> Response:
        return await do(acts.promote, "promote", request, x_paceline_token)

    @router.post("/acts/rollback")
    async def rollback(request: Request, x_paceline_token: Annotated[str, Header()] = "") -> Response:
        return await do(acts.roll_back, "rollback", request, x_paceline_token)

    return router


async def _body(request: Request) -> bytes:
    """The body of an act, JSON by its type: a browser asks before it sends such a one across origins."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "body: expected application/json")
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY:
            raise HTTPException(413, f"body: got more than {MAX_BODY} bytes")
    return raw


async def _refusal(_: Request, fault: Exception) -> Response:
    assert isinstance(fault, HTTPException)  # noqa: S101 - registered for it alone
    return _json_reply(fault.status_code, {"refused": fault.detail})


def _json_reply(status: int, values: Any) -> Response:
    """`values` as JSON; what is not finite becomes null."""
    return Response(msgspec.json.encode(values), status, media_type="application/json")
