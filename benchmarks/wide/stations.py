"""What each station of a trace takes, from the hook to the learner: bytes and processor time per token of a trace."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...buffer.board.member_status import TracesSaid
from ...buffer.stream.trace_codec import encode_trace
from ...learner.claim.intake import Intake, Outcome, sort_entries
from .deployed import TARGET, TARGET_VERSION, Deployed, ProcessorTime, deployed
from .traffic import VOCABULARY, ActedScheduler, Load, Spent

#: Traces per claim: what a claim holds at once must fit a small machine.
CLAIM = 4
CONSUMER = "width"


@dataclass(frozen=True, slots=True)
class Station:
    """One station's totals."""

    name: str
    size_bytes: int
    cpu_s: float

    def line(self, tokens: int) -> str:
        """One row of the table."""
        each_s = self.cpu_s / tokens
        most = f"{1 / each_s:,.0f}" if each_s else "not measurable"
        return f"| {self.name} | {self.size_bytes / tokens:,.0f} | {1e6 * each_s:.2f} | {most} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a learner got: totals over all claims."""

    tokens: int
    outcomes: Mapping[str, int]
    array_bytes: int
    payload_bytes: int  # as Redis keeps them
    cpu_s: float  # of claim, decoding and intake
    encode_s: float  # the same traces encoded again


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """One run over all stations."""

    spent: Spent
    line_bytes: int
    cpu: ProcessorTime  # until all was delivered
    claim_cpu: ProcessorTime  # while the learner claimed
    counts: Mapping[str, Any]
    claimed: Claimed
    courier_peak_bytes: int

    def stations(self) -> list[Station]:
        """In the order of a trace's journey."""
        spent = self.spent
        claimed = self.claimed
        payload_bytes = self.claimed.payload_bytes
        return [
            Station("hook bodies, scheduler thread", spent.captured_bytes, spent.hooks_s),
            Station("hand-over to the line, scheduler thread", self.line_bytes, spent.hand_over_s),
            Station("line, other threads of the scheduler process", self.line_bytes, self.cpu.hand_over),
            Station("courier process, all of it", payload_bytes, self.cpu.courier),
            Station("of that, compression", payload_bytes, claimed.encode_s),
            Station("Redis, a trace and its file", payload_bytes, self.cpu.redis),
            Station("Redis, claim", payload_bytes, self.claim_cpu.redis),
            Station("learner, claim and decode", claimed.array_bytes, claimed.cpu_s),
        ]


def travel(folder: Path, load: Load, *, is_held: bool = True, **changes: Any) -> Journey:
    """Stream `load` through everything; `is_held`: the acted scheduler waits where the line has no room.

    Then it is streamed twice, and the second time counts: a process that has just started pays for every page of memory
    that it touches first, a good part of all it takes at this width.
    """
    with deployed(folder, feature_format=load.feature_format, **changes) as there:
        if is_held:
            _stream(there, load, is_held=True)
        return _stream(there, load, is_held=is_held)


def _stream(there: Deployed, load: Load, *, is_held: bool) -> Journey:
    counted = there.said().account
    sent_bytes = there.courier.sender.sent_bytes
    scheduler = ActedScheduler(load, there.capture, there.hold if is_held else _never)
    before = there.spent()
    spent = scheduler.run()
    counts = there.settle(counted.captured + load.requests)
    delivered = there.spent()
    claimed = claim_all(there, load)
    line_bytes = there.courier.sender.sent_bytes - sent_bytes
    cpu = delivered.since(before)
    claim_cpu = there.spent().since(delivered)
    peak_bytes = there.courier_peak_bytes()
    return Journey(
        spent=spent,
        line_bytes=line_bytes,
        cpu=cpu,
        claim_cpu=claim_cpu,
        counts=since(counts, counted),
        claimed=claimed,
        courier_peak_bytes=peak_bytes,
    )


def since(counts: TracesSaid, before: TracesSaid) -> dict[str, Any]:
    """What was captured, delivered and dropped after `before`."""
    dropped = {reason: n - before.dropped.get(reason, 0) for reason, n in counts.dropped.items()}
    return {
        "captured": counts.captured - before.captured,
        "delivered": counts.delivered - before.delivered,
        "dropped": {reason: traces for reason, traces in dropped.items() if traces},
    }


def claim_all(there: Deployed, load: Load) -> Claimed:
    """Claim what there is, decode it and give it its outcomes, as a learner does; ack it."""
    buffer = there.buffer
    intake = Intake(
        target=TARGET,
        target_versions=(TARGET_VERSION,),
        holdout_share=0.0,
        feature_width=load.width,
        vocabulary=VOCABULARY,
    )
    tokens = array_bytes = payload_bytes = 0
    cpu_s = encode_s = 0.0
    outcomes: dict[str, int] = {}
    while True:
        began_s = time.process_time()
        entries = buffer.claim(CONSUMER, CLAIM)
        sorted_entries = sort_entries(entries, intake, ())
        cpu_s += time.process_time() - began_s
        if not entries:
            return Claimed(
                tokens=tokens,
                outcomes=outcomes,
                array_bytes=array_bytes,
                payload_bytes=payload_bytes,
                cpu_s=cpu_s,
                encode_s=encode_s,
            )
        tokens += sum(len(entry.trace.tokens) for entry in entries)
        array_bytes += sum(entry.trace.features.nbytes for entry in entries)
        for outcome, found in sorted_entries.items():
            outcomes[outcome.value] = outcomes.get(outcome.value, 0) + len(found)
        buffer.ack([entry.entry_id for entry in entries], Outcome.LEARNED)
        began_s = time.process_time()
        payload_bytes += sum(len(encode_trace(entry.trace)) for entry in entries)
        encode_s += time.process_time() - began_s


def _never(_forward_bytes: int) -> None:
    """Wait for nothing."""
