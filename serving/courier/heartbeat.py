"""Keeps a replica's heartbeat small: every reader of the board reads those of all members, every second."""

from typing import Any

import msgspec

from ..wire.counts import BEFORE_BOOT

#: Of a heartbeat as JSON. What gives way is its lists of swaps, of ended requests and of begun ones, the first of them
#: first; all else is bounded where it is counted.
MAX_BEAT_BYTES = 8000
#: As many of each are kept for as long as another can give way.
KEPT_SWAPS = 4
KEPT_REQUESTS = 16
KEPT_BEGINS = 8
#: Figures of a swap, and after how many decimals they are cut.
_DECIMALS = {"commit_ms": 3, "stage_ms": 1, "at": 3, "late_s": 1, "asked_at": 3}


def fitted(status: dict[str, Any]) -> dict[str, Any]:
    """`status` without what only another courier needs, and with as much of its lists as there is room for."""
    kept = {key: value for key, value in status.items() if key != BEFORE_BOOT}
    swaps = [_cut(swap) for swap in kept.get("swaps") or []]
    stretches = kept.get("stretches") or {}
    ended = list(stretches.get("ended") or [])
    begun = list(stretches.get("begun") or [])
    if "swaps" in kept:
        kept["swaps"] = swaps
    if ended or begun:
        kept["stretches"] = {**stretches, "ended": ended, "begun": begun}
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


def _cut(swap: dict[str, Any]) -> dict[str, Any]:
    found = dict(swap)
    for name, decimals in _DECIMALS.items():
        if isinstance(found.get(name), float):
            found[name] = round(found[name], decimals)
    return found
