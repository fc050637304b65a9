"""A member's status from its JSON values, for tests that say what a member sends."""

from collections.abc import Mapping

import msgspec
from paceline.buffer.board.member_status import MemberStatus


def said(values: Mapping[str, object]) -> MemberStatus:
    """Refuses what the schema does not know: a test must not rest on a field that nobody reads."""
    known = msgspec.convert(values, MemberStatus)
    assert values.keys() <= set(MemberStatus.__struct_fields__), values
    return known
