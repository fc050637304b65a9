"""Asks the ranks for swaps, on the entry rank alone, from a thread that may wait; `sglang_swap` carries them out."""

from collections.abc import Callable

from ...buffer.board.member_status import SwapSaid
from ...buffer.errors import PacelineError
from .commands import Act, SwapCommand
from .sglang_swap import RankSwap


class SwapClient:
    """Has a file swapped in on every rank, and waits for it. The swapper's thread owns it, and all that it keeps."""

    def __init__(self, rank: RankSwap) -> None:
        """`rank` is the entry rank's; of what it holds, only `channel` and `effect` are used to write."""
        self._rank = rank
        self._late: list[SwapSaid] = []  # done since, and not taken

    @property
    def draft_version(self) -> int:
        """Number of the version that drafts right now; any thread may ask."""
        return self._rank.draft_version

    def swap(self, number: int, file: str, sha256: str, is_wanted: Callable[[], bool] = lambda: True) -> SwapSaid:
        """Stage `file`, a path or where to fetch it from, and make it the live draft; blocks until done.

        Raises, and the server keeps the weights it has: WeightsRefused when a check or the copy fails, OSError when
        this host cannot load the file, TimeoutError when swapping is off, the scheduler does not reach its next
        iteration (when it does, it may still do the swap: `take_late`), SGLang keeps its memory released, or
        `is_wanted`, asked once the weights are staged, returns False; and what `is_wanted` raises.
        """
        if self._rank.fault:
            raise TimeoutError(f"draft swaps are off: {self._rank.fault}")
        attempt = self._rank.channel.next_attempt()
        try:
            if not self._rank.keeps(number, sha256):
                self._rank.channel.prepare(
                    SwapCommand(act=Act.PREPARE, attempt=attempt, number=number, file=file, sha256=sha256)
                )
            if not is_wanted():
                raise TimeoutError(f"version {number}: it was withdrawn while it was staged")
            answer = self._rank.channel.commit(
                SwapCommand(act=Act.COMMIT, attempt=attempt, number=number, file=file, sha256=sha256)
            )
        except (PacelineError, OSError):
            self._rank.channel.abandon(attempt, number)  # other ranks may keep what they staged
            raise
        assert answer.outcome is not None  # noqa: S101 - commit returns no other answer
        self._settle_late()  # they were done before it
        self._rank.effect.settle(sha256, answer.probe)
        return answer.outcome

    def take_late(self) -> list[SwapSaid]:
        """Commits that were done after `swap` had given up on them, each once, oldest first.

        Blocks until the device is done with them.
        """
        self._settle_late()
        late = self._late
        self._late = []
        return late

    def _settle_late(self) -> None:
        for command, answer in self._rank.channel.take_late():
            assert answer.outcome is not None  # noqa: S101 - no other is late
            self._rank.effect.settle(command.sha256, answer.probe)
            self._late.append(answer.outcome)
