"""Which version's weights judge, as the weight updates of a trainer leave it. Knows no SGLang."""

import logging
import re
import time
from collections.abc import Callable

from ...buffer.board.member_status import TargetSaid

log = logging.getLogger(__name__)

LOADING = "its weights are being loaded"
_COUNTED = re.compile(r"(.*)\+(\d+)", re.DOTALL)


def next_version(version: str) -> str:
    """The name of weights that no trainer named and that came after `version`.

    A whole number counts on: 7, 8, 9. Of any other name the updates since are counted: step-7, step-7+1, step-7+2.
    """
    if version.isascii() and version.isdecimal():
        return str(int(version) + 1)
    counted = _COUNTED.fullmatch(version)
    return f"{counted[1]}+{int(counted[2]) + 1}" if counted else f"{version}+1"


class TargetUpdates:
    """The target's version and the updates that made it. For the scheduler thread; `said` and `version` for any.

    An update is one call that loads all weights, or a session: `open`, any number of loads, `close`. From `open` on the
    weights are those of no version: SGLang unpacks quantised ones, and a peer may write by RDMA without any call.
    """

    def __init__(self, version: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.version = version  # of the last update, or of the weights that the server was started with
        self.updates = 0
        self.last_ms: float | None = None  # None: there was none yet
        self.has_stale_prefixes = False  # the radix cache holds prompts that earlier weights have read
        self._clock = clock
        self._fault = ""  # why the weights may be a mixture, though no update is under way
        self._lost = ""  # why it is not known which weights these are, for good
        self._is_open = False
        self._began_s = 0.0
        # of the update under way
        self._loads = 0
        self._failed = ""
        self._named = ""
        self._is_flushed = False  # since the last load

    @property
    def is_open(self) -> bool:
        """Whether a session is."""
        return self._is_open

    @property
    def reason(self) -> str:
        """Why the weights that judge are of no version; empty while they are of one."""
        return self._lost or (LOADING if self._is_open else self._fault)

    @property
    def judging(self) -> str:
        """The version of the weights that judge now; empty while they are of none."""
        return "" if self.reason else self.version

    def open(self) -> None:
        """A session has begun."""
        self._is_open = True
        self._begin()

    def begin_call(self) -> None:
        """A call that loads weights has begun, in a session or by itself."""
        if not self._is_open:
            self._begin()

    def loaded(self, named: str | None) -> None:
        """Weights were loaded, and the trainer named them or not; nothing was flushed since."""
        self._loads += 1
        self._named = named or self._named
        self._is_flushed = False

    def failed(self, why: str) -> None:
        """A load stopped where some weights may have been written."""
        self._failed = why

    def end_call(self, keeps_prefixes: Callable[[], bool]) -> None:
        """The call is over. Outside of a session that was the update; one that loaded nothing was none.

        `keeps_prefixes`: whether the radix cache holds anything; asked where nothing was flushed since the last load.
        """
        if not self._is_open:
            self._end(keeps_prefixes, is_update=self._loads > 0)

    def close(self, keeps_prefixes: Callable[[], bool], *, is_tried: bool) -> None:
        """The session is over. One in which no load was tried counts: SGLang takes its weights as written by RDMA."""
        self._is_open = False
        self._end(keeps_prefixes, is_update=self._loads > 0 or not is_tried)

    def lose_track(self, why: str) -> None:
        """What an update made of the target is not known. No later one mends that: a session may be open unseen."""
        self._lost = f"its updates could not be followed ({why}); restart the server"

    def renamed(self, version: str) -> None:
        """The trainer says which weights these are. Of an open session it says so in advance."""
        if self._is_open:
            self._named = version
        else:
            self.version = version

    def flushed(self) -> None:
        """The radix cache is empty."""
        self._is_flushed = True
        self.has_stale_prefixes = False

    def said(self) -> TargetSaid:
        """For the replica's heartbeat; any thread may ask."""
        return TargetSaid(
            version=self.version,
            reason=self.reason,
            updates=self.updates,
            update_ms=self.last_ms,
            stale_prefixes=self.has_stale_prefixes,
        )

    def _begin(self) -> None:
        self._began_s = self._clock()
        self._loads = 0
        self._failed = ""
        self._named = ""
        self._is_flushed = False

    def _end(self, keeps_prefixes: Callable[[], bool], *, is_update: bool) -> None:
        if self._failed:
            self._fault = f"an update failed: {self._failed}"
            log.error(
                "paceline: %s; the target may be a mixture, so nothing is captured until one succeeds", self._fault
            )
        elif is_update:
            self._fault = ""
            self.version = self._named or next_version(self.version)
            self.updates += 1
            self.last_ms = 1e3 * (self._clock() - self._began_s)
            self._note_prefixes(keeps_prefixes)

    def _note_prefixes(self, keeps_prefixes: Callable[[], bool]) -> None:
        if self._is_flushed or not keeps_prefixes():
            return
        if not self.has_stale_prefixes:
            log.warning(
                "paceline: version %s of the target serves with cached prompts that earlier weights have read, until "
                "the cache is flushed: update with flush_cache true, or POST /flush_cache",
                self.version,
            )
        self.has_stale_prefixes = True
