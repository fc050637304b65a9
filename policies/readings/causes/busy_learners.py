"""When learners ran learning rounds, from the entries of their histories: one in five seconds, and later one a minute.

An entry says whether a round runs, and for how many seconds rounds have run so far; so it is known when, between two
entries, a round began or ended.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ....buffer.board.counters import Counters, LearnerCounters
from .amounts import BUSY, IDLE, PARTLY, UNKNOWN

#: A learner that beats is heard of more often; one that is not has ended, and its round with it.
HEARD_WITHIN_S = 15.0
#: A stretch of which learners were busy for less than this share, or idle for less, is not called partly busy.
NEARLY = 0.1
_IDLE_PHASE = "idle"

#: From and to a unix second.
Span = tuple[float, float]


def learner_state(learners: Sequence[Sequence[Span]], began_s: float, ended_s: float) -> str:
    """What learners with these busy spans did between two times: BUSY, IDLE or PARTLY; UNKNOWN without a learner."""
    if not learners:
        return UNKNOWN
    busy_s = max(sum(_overlap(span, began_s, ended_s) for span in spans) for spans in learners)
    share = busy_s / max(ended_s - began_s, 1e-9)
    return IDLE if share <= NEARLY else BUSY if share >= 1.0 - NEARLY else PARTLY


def busy_spans(history: Sequence[Counters]) -> list[Span]:
    """When the learner of one history, oldest entry first, ran rounds; nothing before its first entry."""
    seen = [(entry.at, entry.boot, entry.learner) for entry in history if entry.learner is not None]
    found = [span for earlier, later in pairwise(seen) if earlier[1] == later[1] for span in _between(earlier, later)]
    if seen and seen[-1][2].is_busy:
        found.append((seen[-1][0], seen[-1][0] + HEARD_WITHIN_S))
    return [(began_s, ended_s) for began_s, ended_s in found if ended_s > began_s]


def _between(earlier: tuple[float, str, LearnerCounters], later: tuple[float, str, LearnerCounters]) -> Iterator[Span]:
    """At most one span. Of a round that began and ended between two entries, it is not known when."""
    (began_s, _, first) = earlier
    (ended_s, _, last) = later
    if first.is_busy and last.is_busy:
        yield began_s, ended_s
        return
    busy_s = min(_busy_s(last) - _busy_s(first), ended_s - began_s)
    yield (ended_s - busy_s, ended_s) if last.is_busy else (began_s, began_s + busy_s)


def _busy_s(learner: LearnerCounters) -> float:
    return sum(seconds for phase, seconds in learner.seconds.items() if phase != _IDLE_PHASE)


def _overlap(span: Span, began_s: float, ended_s: float) -> float:
    return max(min(span[1], ended_s) - max(span[0], began_s), 0.0)
