"""The scheduler process's share of its replica's status; the courier has the rest."""

import time
from dataclasses import dataclass

import msgspec

from ..buffer.board.counters import MODEL_FREE, Counters, SchedulerCounters
from ..buffer.board.member_status import MemberStatus
from .breaker import Breaker
from .capture.engine_rounds import EngineRounds
from .capture.request_choice import RequestChoice
from .server_identity import ServerIdentity
from .shared_parts import SharedParts
from .swap.swap_record import SwapRecord
from .wire.counts import CaptureCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerShare:
    """Reads it from the parts that know it; for one thread at a time."""

    shared: SharedParts
    identity: ServerIdentity
    breaker: Breaker
    counts: CaptureCounts
    choice: RequestChoice
    rounds: EngineRounds
    swaps: SwapRecord
    canary_turn_s: float
    asks_for_swaps: bool = True

    def said(self) -> MemberStatus:
        """As it is now."""
        shared = self.shared
        swap = shared.swap
        published, loaded = swap.effect.digests
        pacing = shared.pacing.said()
        pacing.catch_up = shared.catch_up.said()
        said = MemberStatus(
            draft_version=self._draft,
            canary_window_s=self.canary_turn_s,
            skipped=self.counts.skipped_told(),
            capture_reason=self.breaker.reason,
            swap=self._swaps_are(),
            swap_reason=swap.fault or swap.waits_for,
            published_sha256=published,
            loaded_sha256=loaded,
            target=shared.target.updates.said(),
            engine_rounds=self.rounds.look(swap.running()),
            captured_rounds=self.choice.rounds,
            pacing=pacing,
            server=self.identity.said(),
            clock_reason=shared.clock.fault,
            penalties_reason=shared.tokens.fault,
            counters=self._counters(),
        )
        self.swaps.fill(said)
        return said

    def _swaps_are(self) -> str:
        if self.shared.swap.fault:
            return "off"
        return "on" if self.asks_for_swaps else "follows"

    @property
    def _draft(self) -> int | None:
        number = self.shared.swap.draft_version
        return None if number == MODEL_FREE else number

    def _counters(self) -> Counters:
        """Those of the scheduler process; the courier adds its own."""
        shared = self.shared
        scheduler = self._with_swaps(shared.clock.counters())  # before `at`, which is no earlier than what is counted
        return Counters(
            at=time.time(),
            boot=self.identity.boot,
            started_at=self.identity.started_at,
            draft=self._draft,
            target_version=shared.target.updates.version,
            scheduler=scheduler,
        )

    def _with_swaps(self, counted: SchedulerCounters | None) -> SchedulerCounters | None:
        if counted is None:
            return None
        return msgspec.structs.replace(counted, swaps=self.swaps.done, swaps_refused=len(self.swaps.refused))
