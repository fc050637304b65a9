"""What became of every captured trace: captured == delivered + dropped + open + queued, at any time."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...buffer.board.counters import TraceCounters
from ...buffer.board.member_status import TracesSaid


class DropReason(StrEnum):
    """Why a captured trace was not delivered."""

    QUEUE_FULL = "queue_full"  # the courier was too slow, and a forward of the request was lost
    TARGET_LOADING = "target_loading"  # a forward ran while the target's weights were being loaded
    FAULT = "fault"  # a fault in the scheduler process lost a forward of the request; the log says which
    GAP = "gap"  # a forward did not continue the trace window
    NO_ROUNDS = "no_rounds"  # the request ended before its first verify round
    INVALID = "invalid"  # the window broke an alignment rule
    BACKLOG_FULL = "backlog_full"  # Redis was away for longer than the backlog lasts
    RETENTION = "retention"  # Redis writes to its disk, which PACELINE_RETENTION=memory forbids
    PAYLOAD_KEY = "payload_key"  # it was to be encrypted, and the key cannot be used
    CAPTURE_OFF = "capture_off"  # the breaker opened while the window was open
    COURIER_DIED = "courier_died"  # a courier process held it and ended
    SERVER_DIED = "server_died"  # its server and that server's courier were killed together


class SkipReason(StrEnum):
    """Why a request was never captured."""

    SAMPLED_OUT = "sampled_out"
    OPTED_OUT = "opted_out"
    HEALTH_CHECK = "health_check"
    LORA = "lora"  # hidden states that the learner recomputes would be those of the target without its adapter
    NOT_TEXT = "not_text"  # images, audio or embeddings: its token ids are not what the target read


@dataclass(slots=True, kw_only=True)
class CaptureCounts:
    """Counters of one process; any thread may write, and read a snapshot."""

    captured: int = 0
    delivered: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    skipped: Counter[SkipReason] = field(default_factory=Counter)
    rounds: int = 0
    payload_bytes: int = 0
    labels_refused: int = 0  # of the captured traces, those whose client named a label that may not be kept
    has_predecessor: bool = False  # the counts of the server before this one, if any, are included
    before_boot: TraceCounters = field(default_factory=TraceCounters)  # the part of that server
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def opened(self, *, is_label_refused: bool = False) -> None:
        """One more trace window."""
        with self._lock:
            self.captured += 1
            self.labels_refused += is_label_refused

    def drop(self, reason: DropReason) -> None:
        """One captured trace is not delivered."""
        with self._lock:
            self.dropped[reason] += 1

    def skip(self, reason: SkipReason) -> None:
        """One request is not captured."""
        with self._lock:
            self.skipped[reason] += 1

    def refuse(self, traces: int, reason: DropReason) -> None:
        """Traces captured and dropped at once."""
        if traces:
            with self._lock:
                self.captured += traces
                self.dropped[reason] += traces

    def deliver(self, traces: int, payload_bytes: int) -> None:
        """Traces the buffer has taken."""
        with self._lock:
            self.delivered += traces
            self.payload_bytes += payload_bytes

    def resume(self, before: TracesSaid, begun_since: int, why: DropReason = DropReason.COURIER_DIED) -> None:
        """Continue from the counts of another courier; what it had neither delivered nor dropped died with it.

        So did `begun_since` requests that began after those counts. What it delivered after them is counted as lost
        too. Reasons that this release does not know are kept as they are.
        """
        with self._lock:
            self.captured += before.captured + begun_since
            self.delivered += before.delivered
            self.rounds += before.rounds
            self.payload_bytes += before.payload_bytes
            self.labels_refused += before.labels_refused
            self.has_predecessor |= before.has_predecessor
            self.dropped.update(before.dropped)
            held = before.captured - before.delivered - sum(before.dropped.values())
            if held + begun_since:
                self.dropped[why] += held + begun_since
            carried = before.before_boot or TraceCounters()
            self.before_boot = _before_boot(before, held) if why is DropReason.SERVER_DIED else carried

    def hand_over(self, told: TracesSaid) -> None:
        """Go on without the counts of an earlier `told`: another server took this one for dead, and has them.

        What was open or queued then is lost by those counts, and is counted here once more.
        """
        with self._lock:
            dropped = Counter(told.dropped)
            before = self.before_boot
            ended = told.delivered + dropped.total()
            self.captured -= ended
            self.delivered -= told.delivered
            self.dropped.subtract(dropped)
            self.rounds -= told.rounds
            self.payload_bytes -= told.payload_bytes
            self.labels_refused -= told.labels_refused
            dropped_before = Counter(before.dropped)
            dropped_before.subtract(dropped)
            self.before_boot = TraceCounters(
                captured=before.captured - ended,
                delivered=before.delivered - told.delivered,
                dropped=dict(dropped_before),
            )

    def since_boot(self, skipped: Mapping[str, int]) -> TraceCounters:
        """What became of the traces of this server; `skipped` is counted elsewhere."""
        with self._lock:
            before = self.before_boot
            dropped = Counter({str(why): n for why, n in self.dropped.items()})
            dropped.subtract(before.dropped)
            return TraceCounters(
                captured=self.captured - before.captured,
                delivered=self.delivered - before.delivered,
                dropped={why: n for why, n in dropped.items() if n},
                skipped=dict(skipped),
            )

    def told(self) -> TracesSaid:
        """A consistent snapshot."""
        with self._lock:
            return TracesSaid(
                captured=self.captured,
                delivered=self.delivered,
                dropped={str(k): n for k, n in self.dropped.items()},
                rounds=self.rounds,
                payload_bytes=self.payload_bytes,
                labels_refused=self.labels_refused,
                has_predecessor=self.has_predecessor,
                before_boot=self.before_boot,
            )

    def skipped_told(self) -> dict[str, int]:
        """Requests that were never captured, by reason."""
        with self._lock:
            return {str(k): n for k, n in self.skipped.items()}


def _before_boot(before: TracesSaid, held: int) -> TraceCounters:
    """The part of a server that was killed with what it `held`."""
    dropped = Counter(before.dropped)
    dropped[DropReason.SERVER_DIED.value] += held
    return TraceCounters(captured=before.captured, delivered=before.delivered, dropped=dict(dropped))
