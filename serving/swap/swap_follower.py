"""Notes swaps that another rank asked for: of data-parallel attention, where one entry rank swaps for all."""

import logging
import threading

import msgspec

from .sglang_swap import RankSwap
from .swap_channel import Answer
from .swap_record import SwapRecord

log = logging.getLogger(__name__)


class SwapFollower:
    """Beside an entry rank that asks for no swap itself, in a thread of its own, which owns `record` and the effect."""

    def __init__(self, rank: RankSwap, record: SwapRecord) -> None:
        self._rank = rank
        self._record = record
        self._before = rank.draft_version

    def start(self) -> threading.Thread:
        """Run in a daemon thread and return it."""
        thread = threading.Thread(target=self._run, name="paceline-swap-follower", daemon=True)
        thread.start()
        return thread

    def note(self, answer: Answer) -> None:
        """One commit was tried on this rank; blocks until the device is done with it."""
        if answer.outcome is None:
            return
        self._rank.effect.settle(answer.sha256, answer.probe)
        self._record.note(msgspec.structs.replace(answer.outcome, before=self._before))
        self._before = answer.outcome.number

    def _run(self) -> None:
        while True:
            try:
                self.note(self._rank.channel.answers.get())
            except Exception:  # the follower outlives any fault: the swap itself is done
                log.exception("paceline: a swap that another rank asked for is not noted")
