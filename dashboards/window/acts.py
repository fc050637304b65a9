"""Promote and roll back from the page: orders are checked here, and done by the callables that were handed in."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from ...buffer.board.operator_acts import Order
from ...buffer.errors import BoardConflict, BufferUnavailable, ConfigError, OperatorRefused, WeightsRefused
from ...buffer.plain_text import printable
from .attempts import MAX_WRONG, WINDOW_S, Attempts, Unheard

_log = logging.getLogger(__name__)

#: Longest reason; it stays on the board for ever.
MAX_WHY = 300
#: Longest body of an act.
MAX_BODY = 4096


#: Does an order with a token and returns which version is live then. Raises OperatorRefused for a wrong token,
#: ConfigError when none is set on the board, BoardConflict when the board is not as the order says, WeightsRefused,
#: BufferUnavailable.
Act = Callable[[Order, str], int | None]


@dataclass(frozen=True, slots=True)
class Acts:
    """What the page may have done, by whoever opened it."""

    promote: Act
    roll_back: Act
    #: Puts on record how many acts on a speculator were not heard. May block, and raise BufferUnavailable.
    record_unheard: Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to an order: an HTTP status and JSON values."""

    status: int
    body: Mapping[str, object]


#: What went wrong -> HTTP status.
_STATUS: Mapping[type[Exception], int] = {
    OperatorRefused: 403,
    ConfigError: 403,
    BoardConflict: 409,
    WeightsRefused: 409,
    BufferUnavailable: 503,
}


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """Who is heard at all: attempts, and what was refused unheard."""

    attempts: Attempts
    unheard: Unheard


def perform(act: Act, name: str, *, raw: bytes, token: str, door: Doorkeeper, now: Callable[[], float]) -> Told:
    """Do an order that came as JSON. Blocks on Redis, on the disk, and a tenth of a second on the token."""
    try:
        order = msgspec.json.decode(raw, type=Order)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _refused(422, f"order: {error}")
    if fault := _fault(order, token):
        return _refused(422, fault)
    begun = door.attempts.begin()
    if begun is None:
        door.unheard.add(order.speculator)
        _log.warning("paceline window: %s %d refused unheard: too many wrong tokens", name, order.number)
        return _refused(429, f"got {MAX_WRONG} wrong tokens in {WINDOW_S:.0f} s, expected fewer; wait a minute")
    return _done(act, name, order=order, token=token, attempts=door.attempts, begun=begun, now=now)


def _done(
    act: Act, name: str, *, order: Order, token: str, attempts: Attempts, begun: float, now: Callable[[], float]
) -> Told:
    try:
        live = act(order, token)
    except tuple(_STATUS) as error:
        if not isinstance(error, OperatorRefused):
            attempts.forgive(begun)
        return _refused(_STATUS[type(error)], str(error))
    attempts.forgive(begun)
    text = f"draft {live} is live on the board" if live is not None else "no draft is live on the board"
    return Told(200, {"live": live, "at": now(), "text": f"{name} {order.number}: {text}"})


def _fault(order: Order, token: str) -> str:
    """What is wrong with an order before anybody looks at the board."""
    if not token:
        return "token: got none, expected the operator's in the header X-Paceline-Token"
    if not order.why.strip() or len(order.why) > MAX_WHY:
        return f"reason: got {len(order.why.strip())} characters, expected 1 to {MAX_WHY}"
    return ""


def _refused(status: int, why: str) -> Told:
    return Told(status, {"refused": printable(why)})
