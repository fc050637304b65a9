"""The wire: a board event becomes JSON, and back.

Traces live for a day and board events for ever, so events have schema numbers of their own, and stay readable for as
long as a board may hold them. Decoding trusts nothing: every refusal is a DecodeError that keeps the raw bytes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from .errors import BoardConflict, DecodeError
from .schemas import decode_reason, unknown_schema
from .version import NOT_OURS, BoardEvent, VersionState

#: Number of the schema in which this build writes board events; _EVENT_READERS lists those it reads.
EVENT_SCHEMA = 1


class _JudgedOn(msgspec.Struct):
    labels: dict[str, int]
    newest_labels: dict[str, int]
    median_age_s: float | None
    oldest_age_s: float | None
    undated: int
    # As `judged_on` below.
    targets: dict[str, int] | msgspec.UnsetType = {}
    drafts: dict[int, int] | msgspec.UnsetType = {}


class _Version(msgspec.Struct):
    number: int
    parent: int | None
    target: str
    target_version: str
    drafter: str
    weights_uri: str
    sha256: str
    objective: str
    trained_on: tuple[str, str] = msgspec.field(name="window")
    scores: Mapping[str, float] = {}
    # Left out where there is none: such versions are written as before it. A release that does not know it reads past.
    judged_on: _JudgedOn | msgspec.UnsetType | None = None
    trained_targets: tuple[str, ...] | msgspec.UnsetType = ()


class _Event(msgspec.Struct):
    number: int
    state: VersionState
    by: str
    why: str
    at: float
    version: _Version | None = None
    event_id: str = ""
    replica: str = ""


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    schema: int
    event: msgspec.Raw  # read once the schema is known


def encode_event(event: BoardEvent) -> bytes:
    """Return `event` as JSON without its `event_id`, which the board assigns.

    Raises BoardConflict when a score is not finite: JSON would hold null, and no reader could fold the board.
    """
    version = event.version
    if version is not None:
        scores = {name: float(score) for name, score in version.scores.items()}
        if not all(map(math.isfinite, scores.values())):
            raise BoardConflict(f"version {event.number}: got scores {scores}, expected finite numbers")
        version = replace(version, scores=scores)
    wire = msgspec.convert(replace(event, version=version, event_id=""), _Event, from_attributes=True)
    if wire.version is not None:
        _leave_out_nothing(wire.version)
    return msgspec.json.encode(_Envelope(EVENT_SCHEMA, msgspec.Raw(msgspec.json.encode(wire))))


def _leave_out_nothing(version: _Version) -> None:
    """Unset the later fields that hold nothing."""
    if isinstance(version.judged_on, _JudgedOn):
        version.judged_on.targets = version.judged_on.targets or msgspec.UNSET
        version.judged_on.drafts = version.judged_on.drafts or msgspec.UNSET
    version.judged_on = version.judged_on or msgspec.UNSET
    version.trained_targets = version.trained_targets or msgspec.UNSET


def decode_event(raw: bytes, event_id: str = "") -> BoardEvent:
    """Return the event that `raw` carries, under the id the board gave it. DecodeError, with `raw`, as for traces."""
    try:
        envelope = msgspec.json.decode(raw, type=_Envelope)
        read = _EVENT_READERS.get(envelope.schema)
        event = None if read is None else read(envelope.event)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise DecodeError(decode_reason(f"board event {event_id}: {error}") + f"; {NOT_OURS}", raw) from error
    if event is None:
        raise DecodeError(unknown_schema(f"board event {event_id}", envelope.schema, _EVENT_READERS), raw)
    return replace(event, event_id=event_id)


def _read_event_1(event: msgspec.Raw) -> BoardEvent:
    return msgspec.convert(msgspec.json.decode(event, type=_Event), BoardEvent, from_attributes=True)


#: Schema number -> what turns an event of that schema into a BoardEvent, for every schema that this build reads.
_EVENT_READERS: dict[int | None, Callable[[msgspec.Raw], BoardEvent]] = {1: _read_event_1}
