"""What the time of a scheduler goes to: to the kind of forward whose result came, or to nothing."""

from collections import defaultdict


class BusyTime:
    """Splits the time since it was made among kinds of work and idleness. For one thread at a time.

    Between two results the scheduler worked on the later one. It is idle from a result that leaves nothing to do until
    the next forward is launched. All times are seconds by the same clock.
    """

    def __init__(self, now_s: float) -> None:
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._since_s = now_s
        self._is_idle = True

    def launch(self, now_s: float) -> None:
        """A forward begins; of consequence while it is idle."""
        if self._is_idle:
            self._pass("idle", now_s)
            self._is_idle = False

    def end(self, kind: str, now_s: float, *, is_idle: bool) -> float:
        """A result has come; return the seconds it took. `is_idle`: whether nothing is left to do."""
        took_s = self._pass("idle" if self._is_idle else kind, now_s)
        took_s = 0.0 if self._is_idle else took_s
        self._is_idle = is_idle
        return took_s

    def spend(self, kind: str, took_s: float) -> None:
        """Something between two forwards took this long, until now: part of neither."""
        self._spent[kind] += took_s
        self._since_s += took_s

    def seconds(self, now_s: float) -> dict[str, float]:
        """By kind, `idle` among them, without the forward that is under way; they only grow."""
        idle_s = self._spent["idle"] + (max(now_s - self._since_s, 0.0) if self._is_idle else 0.0)
        return {**self._spent, "idle": idle_s}

    def _pass(self, kind: str, now_s: float) -> float:
        took_s = max(now_s - self._since_s, 0.0)
        self._spent[kind] += took_s
        self._since_s = now_s
        return took_s
