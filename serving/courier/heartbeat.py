"""Keeps a replica's heartbeat small: every reader of the board reads those of all members, every second."""

from typing import Any

import msgspec

from ..wire.counts import BEFORE_BOOT

#: Of a heartbeat as JSON. Only its list of swaps gives way; the rest is bounded where it is counted.
MAX_BEAT_BYTES = 8000
#: Figures of a swap, and after how many decimals they are cut.
_DECIMALS = {"commit_ms": 3, "stage_ms": 1, "at": 3, "late_s": 1, "asked_at": 3}


def fitted(status: dict[str, Any]) -> dict[str, Any]:
    """`status` without what only another courier needs, and with as many of its newest swaps as there is room for."""
    kept = {key: value for key, value in status.items() if key != BEFORE_BOOT}
    swaps = [_cut(swap) for swap in kept.get("swaps") or []]
    room = MAX_BEAT_BYTES - len(msgspec.json.encode({**kept, "swaps": []}))
    fitting: list[dict[str, Any]] = []
    for swap in reversed(swaps):
        room -= len(msgspec.json.encode(swap)) + 1
        if room < 0:
            break
        fitting.insert(0, swap)
    return {**kept, "swaps": fitting} if "swaps" in kept else kept


def _cut(swap: dict[str, Any]) -> dict[str, Any]:
    found = dict(swap)
    for name, decimals in _DECIMALS.items():
        if isinstance(found.get(name), float):
            found[name] = round(found[name], decimals)
    return found
