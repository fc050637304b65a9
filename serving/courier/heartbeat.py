"""Keeps a replica's heartbeat small: every reader of the board reads those of all members, every second."""

from typing import Any

import msgspec

from ...buffer.board.member_status import MemberStatus, StretchesSaid, SwapSaid

#: Of a heartbeat as JSON. What gives way is its lists of swaps, of ended requests and of begun ones, the first of them
#: first; all else is bounded where it is counted.
MAX_BEAT_BYTES = 8000
#: As many of each are kept for as long as another can give way.
KEPT_SWAPS = 4
KEPT_REQUESTS = 16
KEPT_BEGINS = 8


def fitted(said: MemberStatus) -> MemberStatus:
    """`said` without what only another courier needs, and with as much of its lists as there is room for."""
    traces = said.traces and msgspec.structs.replace(said.traces, before_boot=None)
    stretches = said.stretches or StretchesSaid()
    swaps: list[Any] = [_cut(swap) for swap in said.swaps]
    ended: list[Any] = [*stretches.ended]
    begun: list[Any] = [*stretches.begun]
    kept = msgspec.structs.replace(said, traces=traces, swaps=swaps)
    if said.stretches:
        kept.stretches = msgspec.structs.replace(stretches, ended=ended, begun=begun)
    excess = len(msgspec.json.encode(kept)) - MAX_BEAT_BYTES
    least = ((swaps, KEPT_SWAPS), (ended, KEPT_REQUESTS), (begun, KEPT_BEGINS), (swaps, 0), (ended, 0), (begun, 0))
    for rows, at_least in least:
        excess = _shorten(rows, excess, at_least)
    return kept


def _shorten(rows: list[Any], excess: int, at_least: int) -> int:
    """Take rows off the front of `rows` until `excess` bytes are gone; what is left of them is returned."""
    while excess > 0 and len(rows) > at_least:
        excess -= len(msgspec.json.encode(rows.pop(0))) + 1
    return excess


def _cut(swap: SwapSaid) -> SwapSaid:
    """Its figures with as many decimals as they are worth."""
    return msgspec.structs.replace(
        swap,
        commit_ms=round(swap.commit_ms, 3),
        at=round(swap.at, 3),
        late_s=round(swap.late_s, 1),
        stage_ms=round(swap.stage_ms, 1),
        asked_at=None if swap.asked_at is None else round(swap.asked_at, 3),
    )
