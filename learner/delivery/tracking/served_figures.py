"""What a draft served, as metrics of its run: once it has served enough rounds, and when it has ended."""

from collections.abc import Callable, Mapping
from functools import partial

from ....buffer.board.counters import CONTEXT_STARTS, OUTPUT_STARTS
from ....buffer.board.version import BoardRow, BoardState, VersionState
from ....policies.readings.served_drafts import ServedDraft
from ..run_record import Point
from .attempts import Attempts
from .model_store import Key, KnownVersion, ModelStore, key_of
from .runs import is_writable, log_points, run_or_none

SERVED = "served/"
#: Rounds after which a draft has figures in MLflow, though more will come.
FIRST_ROUNDS = 200
#: Seconds from the end of a draft until its last figures are taken: the requests of that time have ended then.
SETTLE_S = 60.0

_DRAFTING = {VersionState.LIVE, VersionState.CANARY}
_ENDED = {VersionState.RETIRED, VersionState.ROLLED_BACK}


def served_points(served: ServedDraft) -> list[Point]:
    """Accept length with its interval and counts by rounds served, and acceptance by position; nothing unknown.

    Accept length by where rounds began has for a step the first output token, or least context, of each bucket.
    """
    reading = served.accept_length
    at = served.at or 0.0
    rounds = served.sums.rounds
    figures = {
        "accept_length": reading.value,
        "accept_length_low": reading.low,
        "accept_length_high": reading.high,
        "requests": float(reading.count),
        "rounds": float(rounds),
    }
    points = [Point(f"{SERVED}{name}", value, rounds, at) for name, value in figures.items() if value is not None]
    shares = enumerate(served.by_position, 1)
    points += [Point(f"{SERVED}position_acceptance", share, i, at) for i, share in shares if share is not None]
    found = {"output": (OUTPUT_STARTS, served.by_output), "context": (CONTEXT_STARTS, served.by_context)}
    return points + [
        Point(f"{SERVED}{name}_accept_length", length, start, at)
        for name, (starts, buckets) in found.items()
        for start, sums in zip(starts, buckets, strict=False)
        if (length := sums.accept_length) is not None
    ]


class ServedFigures:
    """Logs what drafts served, and remembers what MLflow has of it. What it refuses waits among `attempts`."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._rounds: dict[Key, float] = {}  # that MLflow's figures hold
        self._finished: set[Key] = set()  # whose last figures are taken

    def log(
        self,
        store: ModelStore,
        state: BoardState,
        *,
        known: Mapping[Key, KnownVersion],
        read: Callable[[], Mapping[int, ServedDraft]],
        now_s: float,
    ) -> dict[int, ServedDraft]:
        """Log the figures that are due at `now_s`, unix seconds; return them by draft.

        `read` gives what drafts served; it is called if any figure may be due.
        """
        rows = [row for row in state.rows.values() if key_of(row) in known and self._may_come(row)]
        each = self._attempts.do
        asked = [row for row in rows if each(_figures(row), partial(self._ask_rounds, store, known[key_of(row)], row))]
        due = [row for row in asked if self._rounds[key_of(row)] < FIRST_ROUNDS or _is_over(row, now_s)]
        served = read() if due else {}
        logged: dict[int, ServedDraft] = {}
        for row in due:
            key = key_of(row)
            number = row.version.number
            found = served.get(number, ServedDraft())
            is_over = _is_over(row, now_s)
            needed = max(self._rounds[key], 1) if is_over else FIRST_ROUNDS
            if found.sums.rounds >= needed:
                if not each(_figures(row), partial(_log_one, store, known[key], found)):
                    continue
                self._rounds[key] = found.sums.rounds
                logged[number] = found
            if is_over:
                self._finished.add(key)
        return logged

    def is_finished(self, row: BoardRow) -> bool:
        """Return whether the figures logged last are all that its draft will have."""
        return key_of(row) in self._finished

    def _may_come(self, row: BoardRow) -> bool:
        if row.state in _DRAFTING:
            self._finished.discard(key_of(row))
        return row.state in _DRAFTING | _ENDED and key_of(row) not in self._finished

    def _ask_rounds(self, store: ModelStore, known: KnownVersion, row: BoardRow) -> None:
        if key_of(row) not in self._rounds:
            run = run_or_none(store, known.run)
            self._rounds[key_of(row)] = 0.0 if run is None else run.data.metrics.get(f"{SERVED}rounds", 0.0)


def _figures(row: BoardRow) -> str:
    return f"figures of draft {row.version.number}"


def _log_one(store: ModelStore, known: KnownVersion, found: ServedDraft) -> None:
    """Nothing of a run that somebody deleted: the lineage has its figures all the same."""
    if is_writable(run_or_none(store, known.run)):
        log_points(store, known.run, served_points(found), known.model_id)


def _is_over(row: BoardRow, now_s: float) -> bool:
    return row.state in _ENDED and now_s - row.changed_at >= SETTLE_S
