"""Every Redis key of paceline: name, type, who writes it, who reads it, how long it lives.

All names begin with ``paceline:{speculator}:``, braces included: they are a Redis Cluster hash tag that keeps one
speculator in one slot, which the Lua scripts and transactions need. Run Redis with ``maxmemory-policy noeviction``
(or a ``volatile-*`` one): an evicted stream is lost traffic. Delete all keys of a speculator or none: together they
are made again by the next append, claim or event.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RedisKey:
    """One kind of key. `suffix` ends in ``:`` when every member of it has its own key."""

    suffix: str
    type: str  # as Redis' TYPE says
    holds: str
    writer: str
    reader: str
    lifetime: str

    def name(self, speculator: str, member: str = "") -> str:
        """The key of `speculator`, and of `member` where each has its own."""
        return f"paceline:{{{speculator}}}:{self.suffix}{member}"


TRACES = RedisKey(
    suffix="traces",
    type="stream",
    holds="entry <ms>-<ordinal>, field trace: one encoded DraftTrace; consumer group of BufferConfig.group",
    writer="stream.lua, for serving (append) and learners (claim, ack)",
    reader="learners, dashboards",
    lifetime="entries until max_bytes or max_age_s, applied by every append and claim",
)
COUNTS = RedisKey(
    suffix="counts",
    type="hash",
    holds="delivered, dead_lettered, trimmed, bytes, acked:<outcome>; last: newest entry id; cut: last trimmed ordinal",
    writer="stream.lua",
    reader="stream.lua, for everybody who asks for counts",
    lifetime="as long as the trace stream; begun anew with its group",
)
LEDGER = RedisKey(
    suffix="ledger",
    type="list",
    holds="'<id> <payload bytes> <trace_id>' of every entry in traces, oldest first, so that trimming reads no payload",
    writer="stream.lua",
    reader="stream.lua",
    lifetime="an item as long as its entry",
)
TRACE_IDS = RedisKey(
    suffix="trace_ids",
    type="hash",
    holds="trace_id -> entry id, for every entry in traces: what is sent twice is stored once",
    writer="stream.lua",
    reader="stream.lua",
    lifetime="a field as long as its entry",
)
DEAD_LETTERS = RedisKey(
    suffix="dead_letters",
    type="stream",
    holds="fields reason and raw: an entry that could not be decoded or was never acked, byte for byte",
    writer="stream.lua, for learners (claim)",
    reader="operators",
    lifetime="the newest DEAD_LETTERS_KEPT",
)
BURIED = RedisKey(
    suffix="buried",
    type="set",
    holds="ids of the entries in traces that are dead letters: their like must not be read back",
    writer="stream.lua",
    reader="stream.lua",
    lifetime="an id as long as its entry",
)
EVENTS = RedisKey(
    suffix="events",
    type="stream",
    holds="field event: one BoardEvent as JSON",
    writer="board.lua, for learners, replicas and operators",
    reader="serving, learners, dashboards",
    lifetime="for ever: the board is the fold of all of them",
)
NEXT_NUMBER = RedisKey(
    suffix="next_number",
    type="string",
    holds="how many version numbers were reserved",
    writer="learners (INCR)",
    reader="learners",
    lifetime="for ever",
)
HEARTBEAT = RedisKey(
    suffix="heartbeat:",
    type="string",
    holds="a member's last reading as JSON",
    writer="board.lua, for the member",
    reader="dashboards, learners, serving",
    lifetime="ttl_s of the last beat",
)
LAST_READING = RedisKey(
    suffix="last_reading:",
    type="string",
    holds="a member's last reading as JSON, beating or not",
    writer="board.lua, for the member",
    reader="the next server of that replica's name: what the one before it took along",
    lifetime="LAST_READING_S behind the last beat",
)
MEMBERS = RedisKey(
    suffix="members",
    type="zset",
    holds="member -> unix ms until which its heartbeat lives",
    writer="board.lua, for the members",
    reader="whoever reads heartbeats",
    lifetime="a member until the first beat of anybody after its own expired",
)
LEASE = RedisKey(
    suffix="lease:",
    type="string",
    holds="token of the holder",
    writer="whoever takes the lease (redis-py Lock)",
    reader="the same",
    lifetime="ttl_s from the last renewal; gone behind the body of the lease",
)

OPERATOR_TOKEN = RedisKey(
    suffix="operator_token",
    type="stream",
    holds="fields seal, by, why: a salted hash of the token that operators must show; the newest entry counts",
    writer="operators (paceline token set)",
    reader="operators' commands",
    lifetime="for ever; deleting it lets everybody act as an operator again",
)
REFUSED_OPERATORS = RedisKey(
    suffix="refused_operators",
    type="stream",
    holds="fields by, act, why: who asked for what without the operator's token",
    writer="operators' commands",
    reader="paceline audit",
    lifetime="the newest REFUSALS_KEPT",
)

ALL_KEYS = (
    TRACES,
    COUNTS,
    LEDGER,
    TRACE_IDS,
    DEAD_LETTERS,
    BURIED,
    EVENTS,
    NEXT_NUMBER,
    HEARTBEAT,
    LAST_READING,
    MEMBERS,
    LEASE,
    OPERATOR_TOKEN,
    REFUSED_OPERATORS,
)

#: Dead letters kept, here and in memory; raw traces are large, and a handful shows what is wrong.
DEAD_LETTERS_KEPT = 100

#: Refused acts of operators kept: whoever knocks again and again must not fill Redis.
REFUSALS_KEPT = 1000
