"""What the time of a scheduler goes to: to the kind of forward whose result came, or to nothing."""

from collections import defaultdict


class BusyTime:
    """Splits the time since it was made among kinds of work and idleness. For one thread; `seconds` for any.

    Between two results the scheduler worked on the later one. It is idle from a result that leaves no request running
    and no forward under way until the next forward is launched. All times are seconds by the same clock.
    """

    def __init__(self, now_s: float) -> None:
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._in_flight = 0
        self._open = True, now_s, 0.0  # idle now, since when, idle before: one value, read whole by other threads

    def launch(self, now_s: float) -> None:
        """A forward begins."""
        self._in_flight += 1
        is_idle, since_s, idle_s = self._open
        if is_idle:
            self._open = False, now_s, idle_s + max(now_s - since_s, 0.0)

    def end(self, kind: str, now_s: float, *, is_running: bool) -> float:
        """A result has come; return the seconds it took. `is_running`: whether requests of its batch go on."""
        is_idle, since_s, idle_s = self._open
        took_s = 0.0 if is_idle else max(now_s - since_s, 0.0)
        self._spent[kind] += took_s
        self._in_flight = max(self._in_flight - 1, 0)
        self._open = not (is_running or self._in_flight), now_s, idle_s + (now_s - since_s if is_idle else 0.0)
        return took_s

    def spend(self, kind: str, took_s: float) -> None:
        """Something between two forwards took this long, until now: part of neither."""
        is_idle, since_s, idle_s = self._open
        self._spent[kind] += took_s
        self._open = is_idle, since_s + took_s, idle_s

    def seconds(self, now_s: float) -> dict[str, float]:
        """By kind, `idle` among them, without the forward that is under way; they only grow."""
        is_idle, since_s, idle_s = self._open
        return {**self._spent, "idle": idle_s + (max(now_s - since_s, 0.0) if is_idle else 0.0)}
