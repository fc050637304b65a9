"""MemoryStream: what would be in Redis, inside one process."""

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from threading import Condition, RLock

from paceline.buffer.config import BufferConfig
from paceline.buffer.keys import DEAD_LETTERS_KEPT


class EntryState(Enum):
    """What became of an entry."""

    UNREAD = auto()
    PENDING = auto()
    ACKED = auto()
    BURIED = auto()


#: States of entries that nobody has to ack.
ENDED = {EntryState.ACKED, EntryState.BURIED}


@dataclass(slots=True, kw_only=True)
class StreamEntry:
    """One encoded trace and where it is."""

    entry_id: str
    born_ms: int
    raw: bytes
    trace_id: str  # empty: appended as mere bytes
    state: EntryState = EntryState.UNREAD
    claimed_ms: float = 0.0
    consumer: str = ""  # who claimed it last
    deliveries: int = 0


@dataclass(slots=True, kw_only=True)
class MemoryStream:
    """What would be in Redis; buffers with settings of their own may share one, as processes do there."""

    lock: RLock = field(default_factory=RLock)
    entries: dict[str, StreamEntry] = field(default_factory=dict)  # oldest first
    by_trace_id: dict[str, str] = field(default_factory=dict)  # trace id -> id of the entry that holds it
    bounds: BufferConfig | None = None  # of the last append
    last_ms: int = 0
    delivered: int = 0
    dead_lettered: int = 0
    trimmed: int = 0
    acked: Counter[str] = field(default_factory=Counter)
    asked: Condition = field(default_factory=Condition)
    asks: list[str] = field(default_factory=list)  # who asked for a learning round, oldest first
    taken: int = 0  # how many of them were taken
    dead: deque[tuple[str, bytes]] = field(default_factory=lambda: deque(maxlen=DEAD_LETTERS_KEPT))
