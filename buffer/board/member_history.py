"""A member's history: the counters of its beats as the board keeps them, one zstd frame of JSON per entry."""

from collections.abc import Iterable
from typing import Final

import msgspec
import zstandard

from .counters import Counters

#: Beats that come closer than this share an entry.
HISTORY_EVERY_S: Final = 5.0
#: After this one entry per minute is kept, and the last one of every boot.
HISTORY_FINE_S: Final = 600.0
#: Entries leave after this, when a new one comes.
HISTORY_S: Final = 3600.0
#: Entries kept at most.
HISTORY_KEPT: Final = 720

#: Larger ones are refused before memory is spent on them, since anybody may write to Redis; a heartbeat has 8 kB.
_MAX_ENTRY_BYTES = 256 * 1024
#: Counters are digits and repeated names: higher levels cost the member time and gain a few per cent.
_LEVEL = 3
_DECODER = msgspec.json.Decoder(Counters, strict=False)


class History(list[Counters]):
    """One member's counters, oldest first; `at` of each is when the board took it, by the board's clock."""

    def __init__(self, counters: Iterable[Counters] = (), skipped: int = 0) -> None:
        super().__init__(counters)
        self.skipped: Final = skipped  # entries that this build cannot read as counters


def encode_entry(counters: Counters | None) -> tuple[str, bytes]:
    """Boot and history entry of a beat with `counters`; both empty where it has none."""
    if counters is None:
        return "", b""
    raw = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(msgspec.json.encode(counters))
    return counters.boot, raw


def decode_history(rows: Iterable[tuple[float, bytes]]) -> History:
    """Counters from (unix seconds, entry), in their order; what is no counters is skipped and counted. Never raises."""
    decompressor = zstandard.ZstdDecompressor()  # not for two threads
    found = [_decode(at, raw, decompressor) for at, raw in rows]
    read = [counters for counters in found if counters is not None]
    return History(read, skipped=len(found) - len(read))


def _decode(at: float, raw: bytes, decompressor: zstandard.ZstdDecompressor) -> Counters | None:
    try:
        size = zstandard.frame_content_size(raw)
        if not 0 <= size <= _MAX_ENTRY_BYTES:  # -1: the frame does not declare it
            return None
        # Only after that check: the decompressor allocates whatever size the frame declares.
        counters = _DECODER.decode(decompressor.decompress(raw, allow_extra_data=False))
    except (zstandard.ZstdError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    counters.at = at
    return counters
