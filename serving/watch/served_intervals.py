"""What one replica's draft serves, interval by interval, and what each interval is compared with: for the alarms.

Between two intervals the draft may have changed, which makes it suspect, or the target, which is no fault of the draft.
So a level says of which two it is.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from ...buffer.stream.trace import NO_DRAFT
from ...policies.acceptance import Tally
from ...policies.guard import GuardInput, GuardLimits
from ..wire.request_forward import RequestVerify

#: Versions that take turns, and a few before them.
MAX_LEVELS = 4
#: Requests an alarm needs, so that no single request raises it.
MIN_REQUESTS = 4
#: Rounds after which a canary may be found dead, those of requests that ran when it came included.
CANARY_MIN_ROUNDS = 100
#: Rounds of one request that count for an alarm, so that it takes MIN_REQUESTS of them.
MAX_ROUNDS = CANARY_MIN_ROUNDS // MIN_REQUESTS


@dataclass(frozen=True, slots=True)
class Level:
    """What one draft served of one target."""

    served: Tally = field(default_factory=Tally)
    draft_version: int | None = None
    target_version: str = ""  # the first, where it moved meanwhile


class ServedIntervals:
    """Counts rounds until an interval is judged, and remembers the level before it. For one thread."""

    def __init__(self, limits: GuardLimits, *, alternates: bool) -> None:
        """`alternates`: versions take turns, and each is compared with its own."""
        self._limits = limits
        self._alternates = alternates
        self._draft: int | None = None
        self.target_version: str | None = None  # None: nothing was counted yet
        self._before = Level()
        self._own: dict[int, Level] = {}  # by version, where versions take turns
        self._was_cut = False  # by a change of target, since an interval was judged
        self._begin()

    def _begin(self) -> None:
        self._began_under = self.target_version or ""
        self._accepted = self._rounds = 0
        self._requests: Counter[str] = Counter()  # rounds of each
        self._drafts: Counter[int] = Counter()  # tokens proposed
        self._committed: Counter[int] = Counter()  # tokens of the text

    @property
    def _served(self) -> Tally:
        return Tally(self._accepted, self._rounds)

    def count(self, verify: RequestVerify) -> None:
        """Add one round that drafted."""
        if self._requests[verify.request_id] >= MAX_ROUNDS:
            return
        self._requests[verify.request_id] += 1
        self._accepted += verify.accepted
        self._rounds += 1
        self._drafts.update(token for token in verify.drafted.tolist() if token != NO_DRAFT)
        self._committed.update(verify.commit.tokens)

    def is_full(self, limits: GuardLimits) -> bool:
        """Whether an alarm may be raised on this interval."""
        return self._rounds >= limits.min_rounds and len(self._requests) >= MIN_REQUESTS

    def end(self) -> None:
        """The interval was judged: the next one begins."""
        self._remember()
        self._was_cut = False
        self._begin()

    def forget_level(self) -> None:
        """Compare with nothing before this interval."""
        self._before = Level()

    def change_draft(self, version: int) -> None:
        """From here on `version` drafts, in an interval of its own."""
        if self._rounds >= self._limits.min_rounds:
            self._remember()
        elif not self._alternates and self._has_fallen_with_target():
            self._before = replace(self._before, draft_version=version)  # fell before it came: not its fault
        if self._alternates and self._draft is not None:
            self._own = dict([*self._own.items(), (self._draft, self._before)][-MAX_LEVELS:])
            self._before = self._own.get(version, Level())
        self._draft = version
        self._begin()

    def change_target(self, version: str) -> None:
        """From here on `version` of the target verifies: the comparison starts over.

        Where targets change faster than intervals fill, only the first change cuts one; else none would be judged.
        """
        is_full = self._rounds >= self._limits.min_rounds
        is_first = self.target_version is None
        if is_full:
            self._remember()
        self.target_version = version
        if is_full or is_first or not self._was_cut:
            self._begin()
        self._was_cut = not is_first

    def figures(self, live: Tally) -> GuardInput:
        """What is known of this interval; with rounds of it, `live` is the level to compare with, served meanwhile."""
        token, most = max(self._drafts.items(), key=lambda found: found[1], default=(0, 0))
        now = Level(live, self._draft, self.target_version or "")
        before = now if live.rounds else self._before
        return GuardInput(
            served=self._served,
            served_before=before.served,
            target_move=self._move_since(before),
            is_same_draft=before.draft_version == self._draft,
            proposed_drafts=self._drafts.total(),
            most_proposed=most,
            committed_tokens=self._committed.total(),
            most_committed=self._committed[token],
        )

    def _move_since(self, level: Level) -> str:
        is_moved = level.served.rounds and level.target_version != self.target_version
        return f"from {level.target_version} to {self.target_version}" if is_moved else ""

    def _has_fallen_with_target(self) -> bool:
        """Whether the draft that was compared with itself is dead since the target moved."""
        is_same = self._before.draft_version == self._draft and len(self._requests) >= MIN_REQUESTS
        is_dead = self._served.accept_length < self._limits.floor_accept_length
        return is_same and is_dead and bool(self._move_since(self._before))

    def _remember(self) -> None:
        """What comes is compared with this interval; a low one replaces none that was alive.

        Or a dead draft would have one interval to be found in: a single request whose text it happens to repeat hides
        it there. Where the target's move killed it, this is the level of its new traffic.
        """
        alive = self._limits.alive_accept_length
        before = self._before.served.accept_length
        if self._served.accept_length >= alive or before < alive or self._has_fallen_with_target():
            self._before = Level(self._served, self._draft, self._began_under)
