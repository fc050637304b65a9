"""The answers first: is it faster, is it fresh, what did the last swap do, does the loop lose anything, what is wrong.

Each is one sentence with its level. An answer that nobody alive stands for is unknown, whatever was known before.
"""

from collections.abc import Mapping, Sequence

from ..buffer.board.audit import entry_time
from ..buffer.board.version import BoardRow
from ..buffer.finding import Finding, Level
from ..policies.readings.definitions import Reading
from ..policies.readings.traffic_move import TrafficMove
from .alarm_lines import AlarmLine
from .cells import ago
from .served import WINDOW_S, Served
from .snapshot import LEARNER, REPLICA, Snapshot

#: Alarms, and servers, that are named in a sentence; the tables have all.
_NAMED = 3


def faster(seen: Snapshot, served: Served) -> Finding:
    """How fast speculation is beside plain decoding, and how fast tokens come."""
    speed = served.speed
    drafting = seen.drafting()
    now = _now(served, {name: one for name, one in served.by_replica.items() if name in drafting})
    if not seen.present(REPLICA):
        return Finding("faster", Level.UNKNOWN, nobody_serves(seen))
    if speed.value is None:
        return _bounded(served, now)
    low, high = (speed.value if end is None else end for end in (speed.low, speed.high))
    level = Level.OK if low >= 1.0 else Level.WRONG if high < 1.0 else Level.NOTE
    word = {Level.OK: "yes", Level.WRONG: "no, slower", Level.NOTE: "not shown"}[level]
    ends = "" if speed.low is None else f" ({low:.2f} .. {high:.2f})"
    where = f"{served.speed_where}, {speed.count} plain steps, measured {ago(seen.at - (speed.at or seen.at))} ago"
    return Finding("faster", level, f"{word}: {speed.value:.2f}x plain decoding{ends}, {where}{now}")


def _bounded(served: Served, now: str) -> Finding:
    """What is known without plain steps: between which speeds it must be, and what decides."""
    speed = served.speed
    step_ms = served.step_ms.value
    if speed.low is None or speed.high is None:
        return Finding("faster", Level.UNKNOWN, f"{speed.why_unknown}{now}")
    ends = f"{speed.low:.2f}x .. {speed.high:.2f}x" if speed.low else f"at most {speed.high:.2f}x"
    ends += f" plain decoding, bounded by {speed.count} steps with drafts"
    if step_ms is not None:
        ends += f" of {step_ms:.3g} ms: faster only if a plain one takes over {step_ms / speed.high:.3g} ms"
    return Finding("faster", Level.NOTE, f"not shown: {ends}; {speed.why_unknown}{now}")


def fresh(seen: Snapshot, move: TrafficMove) -> Finding:
    """Which draft is live, how old its traffic was when it went live, and whether traffic moved since."""
    live = seen.state.live
    replicas = seen.present(REPLICA)
    if live is None:
        known = "no version is live: servers draft with what they were started with"
        return Finding("fresh", Level.NOTE, known) if replicas else Finding("fresh", Level.UNKNOWN, nobody_serves(seen))
    if not replicas:
        return Finding(
            "fresh", Level.UNKNOWN, f"draft {live} is live on the board, and no server is alive to draft with it"
        )
    drafts = seen.drafting()
    drafting = [*drafts.values()].count(live)
    without = f", {len(replicas) - len(drafts)} without a model" * (len(drafts) < len(replicas))
    row = seen.state.rows[live]
    text = f"draft {live}, {_learnt(row)} {ago(seen.at - row.changed_at)} ago, drafts on {drafting} of {len(drafts)}"
    text += f" servers{_others(drafts, live)}{without}"
    return Finding("fresh", Level.NOTE if move.has_moved else Level.OK, f"{text}; {_moved(move)}")


def wrong(seen: Snapshot, lines: Sequence[AlarmLine]) -> Finding:
    """How many things are wrong now, and the first of them."""
    active = [line for line in lines if line.at is None]
    if not seen.members:
        return Finding(
            "alarms", Level.UNKNOWN, "nobody was seen in the last 7 days: start a server with this speculator"
        )
    if active:
        named = "; ".join(f"{line.member}: {line.name}, {line.detail}" for line in active[:_NAMED])
        more = "" if len(active) <= _NAMED else f"; and {len(active) - _NAMED} more"
        things = "1 thing is" if len(active) == 1 else f"{len(active)} things are"
        return Finding("alarms", Level.WRONG, f"{things} wrong: {named}{more}")
    if not seen.present():
        return Finding("alarms", Level.UNKNOWN, "no member is alive; all that were seen said that they end")
    if seen.present(REPLICA) and any(name.startswith(LEARNER) for name in seen.members) and not seen.present(LEARNER):
        return Finding("alarms", Level.NOTE, f"no alarm is active, and nothing is learnt: {nobody_learns(seen)}")
    return Finding("alarms", Level.OK, "nothing is wrong")


def nobody_serves(seen: Snapshot) -> str:
    """Why nothing can be said of servers; empty while one is alive."""
    if seen.present(REPLICA):
        return ""
    known = [seen.unseen_s(name) for name in seen.members if name.startswith(REPLICA)]
    return f"no server is alive, the last was seen {ago(min(known))} ago" if known else "no server was ever seen"


def nobody_learns(seen: Snapshot) -> str:
    """Why nothing is learnt; empty while a learner is alive."""
    if seen.present(LEARNER):
        return ""
    known = [seen.unseen_s(name) for name in seen.members if name.startswith(LEARNER)]
    return f"no learner is alive, the last was seen {ago(min(known))} ago" if known else "no learner was ever seen"


def _now(served: Served, by_replica: Mapping[str, Reading]) -> str:
    """Accept length and tokens per second, as far as they are known."""
    length = served.length
    rate = served.rate
    ends = "" if length.low is None or length.high is None else f" ({length.low:.2f} .. {length.high:.2f})"
    known = [f"accept length {length.value:.2f}{ends} over {length.count} requests"] if length.value is not None else []
    known += [f"{rate.value:.0f} tokens/s"] if rate.value is not None else []
    known += [_behind(by_replica)]
    return f"; now (last {ago(WINDOW_S)}) {', '.join(filter(None, known))}" if any(known) else ""


def _behind(lengths: Mapping[str, Reading]) -> str:
    """The server that accepts least, where its 95 % interval ends before that of every other one begins; else empty."""
    known = sorted((one.value, name) for name, one in lengths.items() if one.value is not None)
    if len(known) < 2:
        return ""
    (value, name), (following, _) = known[:2]
    low = lengths[name].low
    high = lengths[name].high
    begins = [lengths[other].low for _, other in known[1:]]
    if low is None or high is None or any(begin is None or begin <= high for begin in begins):
        return ""
    return f"least on {name}, {value:.2f} ({low:.2f} .. {high:.2f}), the next has {following:.2f}"


def _others(drafts: Mapping[str, int | None], live: int) -> str:
    """The servers that draft with another version than the live one, and with which."""
    apart = [
        f"{name} with {'unknown' if number is None else number}" for name, number in drafts.items() if number != live
    ]
    more = "" if len(apart) <= _NAMED else f" and {len(apart) - _NAMED} more"
    return f" ({', '.join(apart[:_NAMED])}{more})" if apart else ""


def _learnt(row: BoardRow) -> str:
    newest = row.version.trained_on[1]
    if not newest:
        return "which names no traffic that it learnt from, went live"
    return f"learnt from traffic up to {ago(max(0.0, row.changed_at - entry_time(newest)))} before it went live"


def _moved(move: TrafficMove) -> str:
    if move.share is None:
        return f"traffic moved since: unknown, {move.why_unknown}"
    if not move.has_moved:
        return "traffic moved since: no"
    label = move.label or "requests without a label"
    return f"traffic moved since: yes, {label} {move.was:.0%} then, {move.now:.0%} now (last {ago(move.now_s)})"
