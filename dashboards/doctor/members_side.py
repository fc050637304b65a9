"""What the members say of themselves: releases, clocks, beats, and how much of their traffic Redis holds."""

from collections.abc import Sequence

from ...buffer.finding import Finding, Level
from ..cells import ago
from ..member_rows import CLOCK_LIMIT_S, clock_ahead_s
from ..served import WINDOW_S, recent
from ..snapshot import LEARNER, REPLICA, Snapshot


def room_for_traffic(seen: Snapshot, max_bytes: int) -> Finding:
    """How many traces the buffer holds, and how much time of the traffic as it is."""
    statuses = [one.said for name, one in seen.members.items() if name.startswith(REPLICA)]
    delivered = sum(status.account.delivered for status in statuses)
    if not delivered:
        return Finding("memory", Level.NOTE, "no trace was delivered yet, so what the buffer holds is not known")
    trace_bytes = sum(status.account.payload_bytes for status in statuses) / delivered
    held = int(max_bytes / max(trace_bytes, 1.0))
    text = f"PACELINE_BUFFER_MAX_BYTES, {max_bytes / 2**30:.2f} GiB, holds {held} traces of {trace_bytes / 1000:.0f} kB"
    if not seen.present(REPLICA):
        return Finding("memory", Level.NOTE, f"{text}; no server is alive, so for how long is not known")
    rate = _traces_per_second(seen)
    if not rate:
        return Finding("memory", Level.OK, f"{text}; no trace came in the last {ago(WINDOW_S)}")
    return Finding("memory", Level.OK, f"{text}: {ago(held / rate)} at the {rate:.2g} traces per second of now")


def servers(seen: Snapshot, supported: Sequence[str]) -> Finding:
    """Whether every live server runs a release that was tried."""
    found = {name: one.said.process.sglang for name, one in seen.present(REPLICA).items()}
    other = {name: release for name, release in found.items() if release and release not in supported}
    if other:
        named = ", ".join(f"{name} runs SGLang {release}" for name, release in other.items())
        return Finding(
            "servers", Level.WRONG, f"{named}; supported are {', '.join(supported)}, elsewhere capture is off"
        )
    if not found:
        return Finding("servers", Level.NOTE, "none is alive, so none was looked at")
    silent = [name for name, release in found.items() if not release]
    said = f"; {', '.join(silent)} do not say which SGLang they run" if silent else ""
    return Finding("servers", Level.NOTE if silent else Level.OK, f"{len(found)} alive, SGLang supported{said}")


def clocks(seen: Snapshot) -> Finding:
    """Whether members agree with Redis on the time: ages, expiry and audit rest on it."""
    ahead = {name: clock_ahead_s(one) for name, one in seen.present().items()}
    off = {name: by for name, by in ahead.items() if by is not None and abs(by) >= CLOCK_LIMIT_S}
    if off:
        named = ", ".join(f"{name} by {by:+.0f} s" for name, by in sorted(off.items()))
        return Finding("clocks", Level.WRONG, f"apart from Redis': {named}; ages and expiry are wrong: set them by NTP")
    known = sum(by is not None for by in ahead.values())
    if not known:
        return Finding("clocks", Level.NOTE, "no member is alive that says what time it is")
    return Finding("clocks", Level.OK, f"{known} members agree with Redis within {CLOCK_LIMIT_S:.0f} s")


def beats(seen: Snapshot) -> Finding:
    """Whether exactly one learner starts the learning rounds, where learners say so."""
    learners = seen.present(LEARNER)
    said = {name: one.said.beat for name, one in learners.items()}
    beating = sorted(name for name, value in said.items() if value is True)
    if not learners:
        return Finding("beat", Level.NOTE, "no learner is alive, so nothing starts learning rounds")
    if len(beating) > 1:
        text = f"{', '.join(beating)} start learning rounds, expected one: start the others with --no-beat"
        return Finding("beat", Level.WRONG, text)
    if beating:
        return Finding("beat", Level.OK, f"{beating[0]} starts the learning rounds, and no other")
    return Finding("beat", Level.NOTE, "no learner says that it starts learning rounds; a beat of its own may do it")


def _traces_per_second(seen: Snapshot) -> float:
    """Of all servers together, over the newest WINDOW_S seconds of what they count; 0 where nothing is known."""
    window = recent(seen)
    traces = window.table("traces", "traces") or {}
    seconds = window.elapsed_s("traces")
    return float(traces["delivered"].total) / seconds if "delivered" in traces and seconds else 0.0
