"""Looks at a fleet while it serves: a line every few seconds, and the one death of Redis' primary."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from ...buffer.errors import BufferUnavailable
from ...rig.traffic import Served, longest_gap_ms, pooled
from .services import Fleet

#: Share of the requests after which the primary is killed: in the middle of the second domain.
_KILLED_AFTER: Final = 0.75
#: Longest that the replica may take to answer in its place.
_LIMIT_S: Final = 60.0
_POLL_S: Final = 0.2
_LINE_EVERY_S: Final = 5.0
_RECENT: Final = 24  # requests that the accept length of a line is pooled over


@dataclass(frozen=True, slots=True, kw_only=True)
class FailOver:
    """The death of the primary, as this process saw it; times are unix seconds."""

    after_requests: int
    killed_at: float
    back_at: float  # the replica answered in its place

    def answered_meanwhile(self, results: Sequence[Served]) -> int:
        """Requests that ended while no Redis answered."""
        return sum(self.killed_at <= result.done_at <= self.back_at for result in results if not result.failure)

    def longest_wait_ms(self, results: Sequence[Served]) -> float | None:
        """Longest wait for a token meanwhile; None where no request streamed."""
        return longest_gap_ms(results, (self.killed_at, self.back_at))


class Watch:
    """Kills the primary of a fleet's Redis once. One thread at a time."""

    def __init__(self, fleet: Fleet, console: Console, total: int) -> None:
        self._fleet = fleet
        self._console = console
        self._total = total
        self._began_s = time.monotonic()
        self._printed_s = float("-inf")
        self._pending = 0
        self._killed: tuple[int, float] | None = None  # requests that were done, and when
        self._fail_over: FailOver | None = None

    def look(self, done: Sequence[Served]) -> int:
        """Pending traces, as last known while no Redis answers; 0 during a trial, which traffic must decide.

        Raises PacelineError when a service has ended.
        BufferUnavailable when Redis does not answer and was not killed, or for a minute after it was.
        """
        self._fleet.first.ensure_running()
        if self._killed is None and len(done) >= _KILLED_AFTER * self._total:
            self._fleet.redis.primary.kill()
            self._killed = len(done), time.time()
            self._print(f"after {len(done)} requests the primary of Redis was killed")
        try:
            self._read(done)
        except BufferUnavailable:
            if self._killed is None or self._fail_over or time.time() - self._killed[1] > _LIMIT_S:
                raise
            return self._pending
        if self._killed is not None and self._fail_over is None:
            requests, at = self._killed
            self._fail_over = FailOver(after_requests=requests, killed_at=at, back_at=time.time())
            self._print(f"its replica answers in its place, {self._fail_over.back_at - at:.1f} s later")
        return self._pending

    def fail_over(self, done: Sequence[Served]) -> FailOver:
        """What was seen, once the replica answers: blocks, and raises, as `look` does. Every request is done."""
        while self._fail_over is None:
            self.look(done)
            time.sleep(_POLL_S)
        return self._fail_over

    def _read(self, done: Sequence[Served]) -> None:
        for running in self._fleet.replicas.values():
            running.reader.swaps()  # a heartbeat lists the newest alone
        reader = self._fleet.first.reader
        self._pending = 0 if reader.has_canary() else reader.traces().pending
        if time.monotonic() - self._printed_s >= _LINE_EVERY_S:
            self._print(self._line(done))
            self._printed_s = time.monotonic()

    def _print(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self._console.print(f"[{elapsed_s:5.0f} s] {text}", highlight=False, soft_wrap=True, markup=False)

    def _line(self, done: Sequence[Served]) -> str:
        failed = Counter(bool(result.failure) for result in done)[True]
        phase = done[-1].prompt.domain if done else "first requests"
        length = f"{pooled(done[-_RECENT:]).accept_length:.2f}" if done else "unknown"
        live = self._fleet.first.reader.live()
        drafts = {name: running.reader.replica_status().draft_version for name, running in self._fleet.replicas.items()}
        named = ", ".join(f"{name} {'unknown' if draft is None else draft}" for name, draft in drafts.items())
        return (
            f"{phase}: requests {len(done)}/{self._total}, {failed} failed, accept length {length}, "
            f"live version {'-' if live is None else live}; drafting: {named}"
        )
