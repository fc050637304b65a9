"""What a draft served, as metrics of its run: once it has served enough rounds, and when it has ended."""

from collections.abc import Callable, Mapping

from ....buffer.version import BoardRow, BoardState, VersionState
from ....policies.readings.served_drafts import ServedDraft
from ..run_record import Point
from .model_store import Key, KnownVersion, ModelStore, key_of
from .runs import log_points

SERVED = "served/"
#: Rounds after which a draft has figures in MLflow, though more will come.
FIRST_ROUNDS = 200
#: Seconds from the end of a draft until its last figures are taken: the requests of that time have ended then.
SETTLE_S = 60.0

_DRAFTING = {VersionState.LIVE, VersionState.CANARY}
_ENDED = {VersionState.RETIRED, VersionState.ROLLED_BACK}


def served_points(served: ServedDraft) -> list[Point]:
    """Accept length with its interval and counts by rounds served, and acceptance by position; nothing unknown."""
    reading, at, rounds = served.accept_length, served.at or 0.0, served.sums.rounds
    figures = {
        "accept_length": reading.value,
        "accept_length_low": reading.low,
        "accept_length_high": reading.high,
        "requests": float(reading.count),
        "rounds": float(rounds),
    }
    points = [Point(f"{SERVED}{name}", value, rounds, at) for name, value in figures.items() if value is not None]
    shares = enumerate(served.by_position, 1)
    return points + [Point(f"{SERVED}position_acceptance", share, i, at) for i, share in shares if share is not None]


class ServedFigures:
    """Logs what drafts served, and remembers what MLflow has of it."""

    def __init__(self) -> None:
        self._rounds: dict[Key, float] = {}  # that MLflow's figures hold
        self._finished: set[Key] = set()  # whose last figures are taken

    def log(
        self,
        store: ModelStore,
        state: BoardState,
        known: Mapping[Key, KnownVersion],
        read: Callable[[], Mapping[int, ServedDraft]],
        now_s: float,
    ) -> dict[int, ServedDraft]:
        """Log the figures that are due at `now_s`, unix seconds; return them by draft.

        `read` gives what drafts served; it is called if any figure may be due.
        """
        waiting = [
            row for row in state.rows.values() if key_of(row) in known and self._may_be_due(store, row, known, now_s)
        ]
        served = read() if waiting else {}
        logged: dict[int, ServedDraft] = {}
        for row in waiting:
            key, number = key_of(row), row.version.number
            found = served.get(number, ServedDraft())
            is_over = _is_over(row, now_s)
            needed = max(self._rounds[key], 1) if is_over else FIRST_ROUNDS
            if found.sums.rounds >= needed:
                log_points(store, known[key].run, served_points(found), known[key].model_id)
                self._rounds[key], logged[number] = found.sums.rounds, found
            if is_over:
                self._finished.add(key)
        return logged

    def is_finished(self, row: BoardRow) -> bool:
        """Whether the figures logged last are all that its draft will have."""
        return key_of(row) in self._finished

    def _may_be_due(self, store: ModelStore, row: BoardRow, known: Mapping[Key, KnownVersion], now_s: float) -> bool:
        key = key_of(row)
        if row.state in _DRAFTING:
            self._finished.discard(key)
        if row.state not in _DRAFTING | _ENDED or key in self._finished:
            return False
        return self._logged_rounds(store, key, known[key]) < FIRST_ROUNDS or _is_over(row, now_s)

    def _logged_rounds(self, store: ModelStore, key: Key, known: KnownVersion) -> float:
        if key not in self._rounds:
            self._rounds[key] = store.client.get_run(known.run).data.metrics.get(f"{SERVED}rounds", 0.0)
        return self._rounds[key]


def _is_over(row: BoardRow, now_s: float) -> bool:
    return row.state in _ENDED and now_s - row.changed_at >= SETTLE_S
