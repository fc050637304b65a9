"""The draft that served beside drafters without a model, by label, over the newest traces."""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...buffer.board.counters import MODEL_FREE
from ...buffer.stream.trace import DraftTrace
from ..readings.ratio_sums import ratio_standard_error
from .drafter import Drafter, is_replayable, judged_tokens, mean_drafts, rounds_needed
from .ngram_table import NgramTable
from .prompt_lookup import PromptLookup

#: Traces that figures are of, at most.
WINDOW = 400
#: Traces that are enough: those before them count only as long as the same draft served them.
ENOUGH = 40
#: Tokens that are replayed of one claim, prompts included: some seconds of processor time.
MOST_TOKENS = 200_000
#: Labels that are told apart, those with most tokens.
MOST_LABELS = 8
#: Standard normal quantile of the interval, 99.9 % two-sided: many labels are looked at after every learning round.
Z = 3.290527


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed:
    """One trace: its tokens, the rounds that served them, and those that each drafter would have needed."""

    label: str
    draft: int
    tokens: int
    served: int
    needed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One drafter on the same text as the draft; `gain` is the draft's verify rounds over the drafter's."""

    drafter: str
    accept_length: float
    gain: float
    low: float | None  # of the gain; None below MIN_REQUESTS traces
    high: float | None

    @property
    def is_better(self) -> bool:
        """Whether the drafter needs fewer rounds, for sure."""
        return self.low is not None and self.low > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelBeside:
    """All drafters on the traces of one label; None: of all labels together."""

    label: str | None
    traces: int
    tokens: int
    accept_length: float  # of the drafts that served
    drafters: tuple[Beside, ...]


class ModelFree:
    """Replays every trace with every drafter, then has them learn it. Belongs to the learner's thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` tells seconds of processor time; only differences matter."""
        self._drafters: tuple[Drafter, ...] = (PromptLookup(), NgramTable())
        self._replayed: deque[_Replayed] = deque(maxlen=WINDOW)
        self._left_out: Counter[str] = Counter()
        self._seconds = [0.0] * len(self._drafters)
        self._rounds = [0] * len(self._drafters)
        self._clock = clock

    def observe(self, traces: Sequence[DraftTrace]) -> None:
        """Replay `traces`, oldest first, before any drafter has learnt of them; some are left out and counted."""
        tokens = 0
        for trace in traces:
            tokens += len(trace.prefix) + len(trace.tokens)
            if trace.draft_version == MODEL_FREE:
                self._left_out["served without a model"] += 1
            elif not is_replayable(trace):
                self._left_out["rounds without drafts, or accept thresholds"] += 1
            elif tokens > MOST_TOKENS:
                self._left_out["more than one learning round replays"] += 1
            else:
                self._replay(trace)

    def remember(self, traces: Iterable[DraftTrace]) -> None:
        """Have the drafters learn `traces`, which were observed before a restart."""
        for trace in traces:
            for drafter in self._drafters:
                drafter.open([*trace.prefix.tolist(), *trace.tokens.tolist()])

    @property
    def left_out(self) -> dict[str, int]:
        """Traces that were not replayed, by reason."""
        return dict(self._left_out)

    @property
    def microseconds_per_round(self) -> dict[str, float]:
        """Processor time of each drafter for one verify round, the reading of prompts included; {} before any."""
        spent = zip(self._drafters, self._seconds, self._rounds, strict=True)
        return {drafter.name: 1e6 * seconds / rounds for drafter, seconds, rounds in spent if rounds}

    @property
    def by_label(self) -> list[LabelBeside]:
        """All labels together, then each, those with most tokens first; none before a trace was replayed."""
        present = self._present()
        tokens: Counter[str] = Counter()
        for one in present:
            tokens[one.label] += one.tokens
        if not tokens:
            return []
        labels = [label for label, _ in tokens.most_common(MOST_LABELS)] if len(tokens) > 1 or "" not in tokens else []
        groups = [[one for one in present if one.label == label] for label in labels]
        return [self._beside(None, present), *map(self._beside, labels, groups)]

    def _replay(self, trace: DraftTrace) -> None:
        most = mean_drafts(trace)
        needed = []
        for place, drafter in enumerate(self._drafters):
            began_s = self._clock()
            needed.append(rounds_needed(drafter, trace, most))
            self._seconds[place] += self._clock() - began_s
            self._rounds[place] += needed[-1]
        if needed[0]:
            tokens = judged_tokens(trace)
            self._replayed.append(
                _Replayed(
                    label=trace.label,
                    draft=trace.draft_version,
                    tokens=tokens,
                    served=len(trace.rounds),
                    needed=tuple(needed),
                )
            )

    def _present(self) -> list[_Replayed]:
        """The newest traces, back to the last change of drafts that has ENOUGH after it."""
        found: list[_Replayed] = []
        for one in reversed(self._replayed):
            if len(found) >= ENOUGH and one.draft != found[-1].draft:
                break
            found.append(one)
        return found

    def _beside(self, label: str | None, found: Sequence[_Replayed]) -> LabelBeside:
        tokens = sum(one.tokens for one in found)
        served = [one.served for one in found]
        return LabelBeside(
            label=label,
            traces=len(found),
            tokens=tokens,
            accept_length=tokens / sum(served),
            drafters=tuple(
                _compared(drafter.name, tokens, served, [one.needed[place] for one in found])
                for place, drafter in enumerate(self._drafters)
            ),
        )


def _compared(name: str, tokens: int, served: Sequence[int], needed: Sequence[int]) -> Beside:
    """The ratio of sums over traces drawn as wholes; its interval is symmetric for the logarithm."""
    gain = sum(served) / sum(needed)
    error = ratio_standard_error(
        len(served),
        rounds=sum(needed),
        accepted=sum(served),
        rounds_squared=sum(n * n for n in needed),
        rounds_accepted=sum(n * s for n, s in zip(needed, served, strict=True)),
        accepted_squared=sum(s * s for s in served),
    )
    bounds = (None, None) if error is None else tuple(gain * math.exp(side * Z * error / gain) for side in (-1, 1))
    return Beside(drafter=name, accept_length=tokens / sum(needed), gain=gain, low=bounds[0], high=bounds[1])
