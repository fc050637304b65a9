"""The wire: a board event becomes JSON, and back.

An event travels as ``{"schema": 1, "event": {...}}``. Traces live for a day and board events for ever, so events have
schema numbers of their own. Every release from 0.1 on reads all boards that were written since 0.1, and reads past
fields that a later release adds; tests/buffer/golden keeps bytes of every schema.

Decoding trusts nothing: every refusal is a DecodeError that keeps the raw bytes.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from ..errors import BoardConflict, DecodeError, decode_reason, unknown_schema
from .reason import Why
from .version import NOT_OURS, BoardEvent, VersionState

#: Number of the one schema that this release writes and reads.
EVENT_SCHEMA = 1


class _JudgedOn(msgspec.Struct, kw_only=True):
    labels: dict[str, int]
    newest_labels: dict[str, int]
    median_age_s: float | None
    oldest_age_s: float | None
    undated: int
    targets: dict[str, int]
    drafts: dict[int, int]


class _Version(msgspec.Struct, kw_only=True):
    number: int
    parent: int | None
    target: str
    target_version: str
    drafter: str
    weights_uri: str
    sha256: str
    objective: str
    trained_on: tuple[str, str]
    trained_targets: tuple[str, ...]
    scores: Mapping[str, float]
    judged_on: _JudgedOn | None


class _Event(msgspec.Struct, kw_only=True):
    number: int
    state: VersionState
    by: str
    why: Why
    at: float
    replica: str
    version: _Version | None


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
    wire = msgspec.convert(replace(event, version=version), _Event, from_attributes=True)
    return msgspec.json.encode(_Envelope(EVENT_SCHEMA, msgspec.Raw(msgspec.json.encode(wire))))


def decode_event(raw: bytes, event_id: str = "") -> BoardEvent:
    """Return the event that `raw` carries, under the id the board gave it. DecodeError, with `raw`, as for traces."""
    try:
        envelope = msgspec.json.decode(raw, type=_Envelope)
        if envelope.schema == EVENT_SCHEMA:
            wire = msgspec.json.decode(envelope.event, type=_Event)
            return replace(msgspec.convert(wire, BoardEvent, from_attributes=True), event_id=event_id)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise DecodeError(decode_reason(f"board event {event_id}: {error}") + f"; {NOT_OURS}", raw) from error
    raise DecodeError(unknown_schema(f"board event {event_id}", envelope.schema, EVENT_SCHEMA), raw)
