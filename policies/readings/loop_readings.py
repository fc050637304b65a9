"""The loop from traces to drafts: what came into the buffer and left it, what waits, and what the learner did."""

from ...buffer.board.counters import LearnerCounters
from .definitions import Reading
from .evidence import ratio, reading
from .tables import Table
from .windows import Counted, Window


def traces_in_per_second(window: Window) -> Reading:
    """As the learner sees the buffer grow, whoever appends."""
    came = _came(window)
    return _rate(window, "traces_in_per_second", came)


def traces_out_per_second(window: Window) -> Reading:
    """Traces that stopped waiting, learnt or lost."""
    return _rate(window, "traces_out_per_second", _left(window))


def traces_captured(window: Window) -> Reading:
    """By all replicas."""
    captured = _amount(window.table("traces", "traces"), "captured")
    return reading(window, "traces_captured", part="traces", value=captured, count=captured)


def traces_dropped(window: Window) -> dict[str, Reading]:
    """By reason, for every reason that was ever counted; `count` is of captured traces."""
    captured = _amount(window.table("traces", "traces"), "captured")
    dropped = window.table("traces", "dropped") or {}
    return {
        reason: reading(window, "traces_dropped", part="traces", value=row.total, count=captured)
        for reason, row in sorted(dropped.items())
    }


def oldest_unread_s(window: Window) -> Reading:
    """As the learner last saw it."""
    last = _last(window)
    why = "no trace waits" if last and not last.pending else "the learner does not say"
    return _state(
        window,
        "oldest_unread_s",
        value=last.oldest_pending_s if last else None,
        count=last.pending if last else 0,
        why=why,
    )


def oldest_kept_s(window: Window) -> Reading:
    """As the learner last saw it."""
    last = _last(window)
    why = "the buffer is empty" if last and not last.entries else "the learner does not say"
    return _state(
        window, "oldest_kept_s", value=last.oldest_kept_s if last else None, count=last.entries if last else 0, why=why
    )


def buffer_holds_s(window: Window) -> Reading:
    """How far back the buffer reaches once it is full; its bound on age may cut it shorter."""
    last = _last(window)
    came = traces_in_per_second(window)
    size = last and ratio(last.bytes, last.entries)
    if last is None or not size or last.max_bytes is None or came.value is None:
        return _state(
            window, "buffer_holds_s", value=None, count=0, why=came.why_unknown or "sizes of traces are not known"
        )
    seconds = ratio(last.max_bytes, came.value * size)
    return _state(window, "buffer_holds_s", value=seconds, count=last.entries, why="no trace came in the window")


def buffer_full_in_s(window: Window) -> Reading:
    """Until traces are lost unread, by size; unknown, with that reason, where the backlog does not grow."""
    last = _last(window)
    came = traces_in_per_second(window)
    left = traces_out_per_second(window)
    size = last and ratio(last.bytes, last.entries)
    if last is None or not size or last.max_bytes is None or came.value is None or left.value is None:
        return _state(
            window, "buffer_full_in_s", value=None, count=0, why=came.why_unknown or "sizes of traces are not known"
        )
    grows = (came.value - left.value) * size
    if grows <= 0.0:
        return _state(
            window, "buffer_full_in_s", value=None, count=last.pending, why="traces leave as fast as they come"
        )
    seconds = max(last.max_bytes - last.pending * size, 0.0) / grows
    return _state(window, "buffer_full_in_s", value=seconds, count=last.pending, why="")


def learner_seconds(window: Window) -> dict[str, Reading]:
    """By phase, over all learners; `count` is of learning rounds."""
    return _by_name(window, "learner_seconds", "learner_seconds")


def learner_rounds(window: Window) -> dict[str, Reading]:
    """By verdict, over all learners; `count` is of learning rounds."""
    return _by_name(window, "learner_rounds", "verdicts")


def _by_name(window: Window, name: str, table: str) -> dict[str, Reading]:
    learning = window.table("learner", "learning")
    count = _amount(learning, "rounds") + _amount(learning, "rests")
    rows = window.table("learner", table) or {}
    return {
        key: reading(window, name, part="learner", value=row.total, count=count) for key, row in sorted(rows.items())
    }


def _rate(window: Window, name: str, traces: float) -> Reading:
    counted = _buffer(window)
    value = ratio(traces, counted.seconds) if counted else None
    return reading(window, name, part="learner", value=value, count=traces)


def _state(window: Window, name: str, *, value: float | None, count: int, why: str) -> Reading:
    return reading(window, name, part="learner", value=value, count=count, why=why)


def _came(window: Window) -> float:
    counted = _buffer(window)
    return _amount(counted.tables["buffer"], "delivered") if counted else 0.0


def _left(window: Window) -> float:
    counted = _buffer(window)
    if counted is None:
        return 0.0
    lost = sum(_amount(counted.tables["buffer"], name) for name in ("trimmed", "dead_lettered"))
    return lost + sum(float(row.total) for row in counted.tables["acked"].values())


def _buffer(window: Window) -> Counted | None:
    """What one learner saw of the buffer, the one that looked longest: all of them see the same one."""
    return max(window.buffer.values(), key=lambda each: each.seconds, default=None)


def _last(window: Window) -> LearnerCounters | None:
    """What the learner that beat last said last."""
    found = max(window.learners.values(), key=lambda pair: pair[0], default=None)
    return found[1] if found else None


def _amount(table: Table | None, name: str) -> float:
    return float(table[name].total) if table and name in table else 0.0
