"""Every Redis key of paceline: name, type, who writes it, who reads it, how long it lives.

All names begin with ``paceline:{speculator}:``, braces included: they are a Redis Cluster hash tag that keeps one
speculator in one slot, which the Lua scripts and transactions need. Run Redis with ``maxmemory-policy noeviction``:
whatever else it evicts is lost traffic or a lost version. Delete all keys of a speculator or none: the next append,
claim or event makes them again together.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisKey:
    """One kind of key. `suffix` ends in ``:`` when every member has a key of its own."""

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
    holds="entry <ms>-<ordinal>, field trace: an encoded DraftTrace, or bytes: the size of one apart; one group",
    writer="stream.lua, for serving (append) and learners (claim, ack)",
    reader="learners, dashboards",
    lifetime="entries until they exceed the bounds, checked by every append, claim and count",
)
PAYLOAD = RedisKey(
    suffix="payload:",
    type="string",
    holds="an encoded DraftTrace of 64 KiB or more under the id of its entry; under new-<random> before it has one",
    writer="serving (SET), stream.lua",
    reader="learners",
    lifetime="as long as its entry; expires a minute after the longest bound on age, or a minute without an entry",
)
COUNTS = RedisKey(
    suffix="counts",
    type="hash",
    holds="delivered, dead_lettered, trimmed, bytes, acked:<outcome>; last: newest entry id; cut: last trimmed ordinal",
    writer="stream.lua",
    reader="stream.lua, for anybody who asks for counts",
    lifetime="as long as the trace stream; reset when its group is made again",
)
BOUNDS = RedisKey(
    suffix="bounds",
    type="hash",
    holds="max_bytes, max_age_ms: what every trim keeps to, those of the last append; longest_age_ms of all appends",
    writer="stream.lua, for serving (append)",
    reader="stream.lua",
    lifetime="for ever; replaced by the next append",
)
LEDGER = RedisKey(
    suffix="ledger",
    type="list",
    holds="'<id> <payload bytes> <trace_id>' of every entry in traces, oldest first, so that they can be trimmed",
    writer="stream.lua",
    reader="stream.lua",
    lifetime="an item as long as its entry",
)
TRACE_IDS = RedisKey(
    suffix="trace_ids",
    type="hash",
    holds="trace_id -> entry id, for every entry in traces, so that a trace sent twice is stored once",
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
    holds="ids of the entries in traces that are dead letters: replay of acked traces leaves them out",
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
    holds="a member's last status as JSON",
    writer="board.lua, for the member",
    reader="dashboards, learners, serving",
    lifetime="ttl_s of the last beat",
)
BOOT = RedisKey(
    suffix="boot:",
    type="string",
    holds="which process has the name of a member",
    writer="board.lua, for the member",
    reader="board.lua, for whoever wants the name",
    lifetime="ttl_s of the last beat",
)
LAST_STATUS = RedisKey(
    suffix="last_reading:",
    type="string",
    holds="a member's last status as JSON, its heartbeat expired or not",
    writer="board.lua, for the member",
    reader="the next server of that replica, for the trace counts of the one before it",
    lifetime="LAST_STATUS_S after the last beat",
)
MEMBERS = RedisKey(
    suffix="members",
    type="zset",
    holds="member -> unix ms at which its heartbeat expires",
    writer="board.lua, for the members",
    reader="anybody who reads heartbeats",
    lifetime="a member until any member beats after its own heartbeat expired",
)
SEEN = RedisKey(
    suffix="seen",
    type="zset",
    holds="member -> unix ms of its last beat",
    writer="board.lua, for the members",
    reader="anybody who asks who fell silent",
    lifetime="a member until any member beats LAST_STATUS_S after its own last beat",
)
HISTORY = RedisKey(
    suffix="history:",
    type="stream",
    holds="fields boot and counters: those of a member's beat, one zstd frame of JSON; thinned as it grows old",
    writer="board.lua, for the member",
    reader="dashboards, learners",
    lifetime="an entry HISTORY_S; all of them LAST_STATUS_S after the last one",
)
LEASE = RedisKey(
    suffix="lease:",
    type="string",
    holds="token of the holder",
    writer="the holder (redis-py Lock)",
    reader="the holder",
    lifetime="ttl_s from the last renewal; deleted after the body of the lease",
)

ASKED_ROUND = RedisKey(
    suffix="asked_round",
    type="stream",
    holds="field by: who asked for a learning round however few traces are pending; one entry, the newest ask",
    writer="trainers (Rollouts.learn)",
    reader="learners: a worker waits for it, a learning round takes it away",
    lifetime="until a learning round takes it",
)

OPERATOR_TOKEN = RedisKey(
    suffix="operator_token",
    type="stream",
    holds="fields seal, by, why: a salted hash of the token that operators must show; the newest entry is in force",
    writer="operators (paceline token set)",
    reader="operators' commands",
    lifetime="for ever; once it is deleted anybody may act as an operator again",
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
    PAYLOAD,
    COUNTS,
    BOUNDS,
    LEDGER,
    TRACE_IDS,
    DEAD_LETTERS,
    BURIED,
    EVENTS,
    NEXT_NUMBER,
    HEARTBEAT,
    BOOT,
    LAST_STATUS,
    MEMBERS,
    SEEN,
    HISTORY,
    LEASE,
    ASKED_ROUND,
    OPERATOR_TOKEN,
    REFUSED_OPERATORS,
)

#: Dead letters kept, in Redis and in memory; raw traces are large, and a handful shows what is wrong.
DEAD_LETTERS_KEPT = 100

#: Refused acts of operators kept: repeated attempts must not fill Redis.
REFUSALS_KEPT = 1000
