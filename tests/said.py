"""A member's status from its JSON values, for tests that say what a member sends."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from paceline.buffer.board.member_status import MemberStatus, read_status


def said(values: Mapping[str, object]) -> MemberStatus:
    """As a board would read it. Refuses fields of no schema: a test must not rest on what nobody reads."""
    assert values.keys() <= set(MemberStatus.__struct_fields__), values
    try:
        return msgspec.convert(values, MemberStatus)
    except msgspec.ValidationError:
        return read_status(msgspec.json.encode(values))


class Part(Protocol):
    """What knows a part of a status."""

    def fill(self, said: MemberStatus) -> None: ...


def said_by(part: Part, **before: Any) -> MemberStatus:
    """What `part` puts into a status of which only `before` was known."""
    found = MemberStatus(**before)
    part.fill(found)
    return found
