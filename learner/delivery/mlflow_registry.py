"""MLflow: every version is a run and a registered model version; aliases follow the board.

MLflow is a view for people, never a step of delivery: versions are published without it. What it has not recorded yet
is pending on disk and registered later; registering twice changes nothing, since a version is known by number and
digest together. Weights are uploaded only for versions that drafted somewhere.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ...buffer.base import VersionBoard
from ...buffer.version import BoardState
from .pending_registrations import PendingRegistrations, read_record
from .run_record import RunRecord
from .tracking.links import run_page
from .tracking.mirror import BoardMirror
from .tracking.mlflow_library import using
from .tracking.model_store import ModelStore, open_store
from .tracking.runs import write_run

_log = logging.getLogger(__name__)

#: Wait after MLflow failed to answer; it doubles with every further failure. The longest is short of the time in which
#: as many versions as stay on disk by default can be published, for a registration brings the weights along.
FIRST_RETRY_S = 60.0
LONGEST_RETRY_S = 240.0
#: Between two comparisons of MLflow with a board that does not change: anybody may edit an alias there.
COMPARE_S = 30.0
#: The newest drafts whose runs a heartbeat names.
RUNS_TOLD = 24


class Registry:
    """One registered model in MLflow, and the registrations that are pending. Not for use from two threads.

    No call raises because MLflow is unreachable or refuses: that is logged, and MLflow is asked again only after
    FIRST_RETRY_S, twice as long after every further failure, at most LONGEST_RETRY_S; an answer resets the wait.
    """

    def __init__(
        self,
        tracking_uri: str,
        model: str,
        pending: PendingRegistrations,
        artifacts: Path,
        clock: Callable[[], float] = time.monotonic,
        pages: str = "",
    ) -> None:
        """`artifacts` is where runs keep files when `tracking_uri` is a database; a server keeps its own.

        `pages` is the address of MLflow's pages, if that is not `tracking_uri`.
        """
        self._uri = tracking_uri
        self._pages = pages or tracking_uri
        self._model = model
        self._pending = pending
        self._artifacts = artifacts
        self._clock = clock
        self._retry_s = 0.0  # the wait after the last failure; 0: none since the last answer
        self._asks_again_at_s = -float("inf")
        self._store: ModelStore | None = None
        self._mirror = BoardMirror()
        self._synced_event = ""
        self._compared_at_s = -float("inf")

    @property
    def pending_registrations(self) -> int:
        """Versions that are published and not yet recorded by MLflow."""
        return len(self._pending)

    def runs_told(self) -> dict[str, object]:
        """Where people find the newest drafts in MLflow, as JSON values for a heartbeat; empty until it is known.

        `run_page` has ``{run}`` in place of an id of `runs`, and is empty where MLflow has no pages of its own.
        """
        newest = sorted(self._mirror.runs, reverse=True)[:RUNS_TOLD]
        if self._store is None or not newest:
            return {}
        runs = {str(number): self._mirror.runs[number] for number in newest}
        return {"mlflow": {"run_page": run_page(self._pages, self._store.experiment), "runs": runs}}

    def enqueue(self, record: RunRecord) -> None:
        """Make a record pending; it is on disk when this returns. OSError on a full disk."""
        self._pending.add(record)

    def sync(self, state: BoardState, board: VersionBoard | None = None) -> bool:
        """Register what is pending, then make MLflow say what the board does; whether all of it is done.

        Aliases, tags and cards follow `state`. With `board`, cards tell who changed what and why, and what members
        counted becomes the figures that drafts served. A version without a record (the initial draft, one an operator
        put on the board) is registered with what the board knows. Blocks while MLflow answers, and for up to a minute
        when it does not; returns at once, without asking, when nothing has changed within COMPARE_S or the wait after
        a failure is not over.
        """
        is_current = bool(self._synced_event) and self._synced_event == state.last_event_id and not len(self._pending)
        if is_current and self._clock() - self._compared_at_s < COMPARE_S:
            return True
        if self._clock() < self._asks_again_at_s:
            return False
        is_done = self._attempt(lambda: self._sync(state, board))
        self._synced_event = state.last_event_id if is_done else ""
        self._compared_at_s = self._clock()
        return is_done

    def _attempt(self, act: Callable[[], None]) -> bool:
        try:
            with using(self._uri):
                self._connect()
                act()
        except Exception as error:  # noqa: BLE001 - MLflow passes on whatever its store raises; none may stop delivery
            self._retry_s = min(2 * self._retry_s or FIRST_RETRY_S, LONGEST_RETRY_S)
            self._asks_again_at_s = self._clock() + self._retry_s
            pending = len(self._pending)
            _log.warning("MLflow: %.300s; %d registrations pending, next try in %g s", error, pending, self._retry_s)
            self._store = None
            return False
        self._retry_s = 0.0
        return True

    def _connect(self) -> None:
        if self._store is None:
            self._store = open_store(self._uri, self._model, self._artifacts)

    def _sync(self, state: BoardState, board: VersionBoard | None) -> None:
        store = self._store
        assert store is not None  # noqa: S101 - _connect came first
        registered = store.versions().keys() if len(self._pending) else set()
        for file in self._pending.files():
            record = read_record(file)
            if record.key not in registered:
                self._mirror.register(store, record, self._run_of(store, record))
            file.unlink()
        self._mirror.reflect(store, state, board, self._run_of)

    def _run_of(self, store: ModelStore, record: RunRecord) -> str:
        """The version's run with everything logged; a run that an interrupted attempt began is completed."""
        return write_run(store, record)
