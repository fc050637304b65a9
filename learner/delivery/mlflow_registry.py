"""MLflow: every version is a run and a registered model version; aliases follow the board.

MLflow is a view for people, never a step of delivery: versions are published without it. What it has not recorded yet
is pending on disk and registered later; registering twice changes nothing, since a version is known by number and
digest together. Weights are uploaded only for versions that drafted somewhere.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import msgspec

from ...buffer.board.member_status import MlflowRuns, MlflowWait, MlflowWaiting
from ...buffer.board.version import BoardState
from ...buffer.board.version_board import VersionBoard
from ..config import LearnerConfig
from .pending_registrations import PendingRegistrations, number_of, open_pending, read_record
from .run_record import RunRecord
from .tracking.attempts import ALL, Attempts, reason
from .tracking.mirror import BoardMirror
from .tracking.mlflow_library import using
from .tracking.model_store import Key, ModelStore, open_store, run_page
from .tracking.runs import write_run

_log = logging.getLogger(__name__)

#: For so long a learning round waits for MLflow, and not at all after a comparison that took longer.
PATIENCE_S = 20.0
#: Between two comparisons of MLflow with a board that does not change: anybody may edit an alias there.
COMPARE_S = 30.0
#: The newest drafts whose runs a heartbeat names, and the things that wait longest.
RUNS_TOLD = 24
WAITING_TOLD = 5


class Registry:
    """One registered model in MLflow, and the registrations that are pending. Not for use from two threads.

    No call raises because MLflow is unreachable or refuses. When it does not answer, that is logged, and it is asked
    again only after FIRST_RETRY_S, twice as long after every further failure, at most LONGEST_RETRY_S; an answer resets
    the wait. What it refuses waits by itself in the same way, and stops nothing else.
    """

    def __init__(
        self,
        tracking_uri: str,
        model: str,
        *,
        pending: PendingRegistrations,
        artifacts: Path,
        versions: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        pages: str = "",
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`artifacts` is where runs keep files when `tracking_uri` is a database; a server keeps its own.

        `versions` is the learner's folder of weights, for versions that the board names in a store.
        `pages` is the address of MLflow's pages, if that is not `tracking_uri`.
        """
        self._uri = tracking_uri
        self._pages = pages or tracking_uri
        self._model = model
        self._pending = pending
        self._artifacts = artifacts
        self._clock = clock
        self._patience_s = patience_s
        self._is_slow = False
        self._asks_again_at_s = -float("inf")
        self._store: ModelStore | None = None
        self._attempts = Attempts(clock)
        self._mirror = BoardMirror(self._attempts, versions)
        self._compared: tuple[str, list[Path]] | None = None  # newest event and pending files that MLflow was told of
        self._compared_at_s = -float("inf")
        self._thread: threading.Thread | None = None

    @property
    def pending_registrations(self) -> int:
        """Versions that are published and not yet recorded by MLflow, and cards, figures and aliases that wait."""
        return max(len(self._pending), len(self._attempts.waiting))

    def runs_told(self) -> MlflowRuns | None:
        """Where people find the newest drafts in MLflow; None until it is known."""
        newest = sorted(self._mirror.runs, reverse=True)[:RUNS_TOLD]
        if self._store is None or not newest:
            return None
        runs = {str(number): self._mirror.runs[number] for number in newest}
        return MlflowRuns(run_page=run_page(self._pages, self._store.experiment), runs=runs)

    def waiting_told(self) -> MlflowWaiting:
        """Return what MLflow has not been told, since when, why and what to do."""
        waiting = sorted(self._attempts.waiting.values(), key=lambda one: (one.what != ALL, one.since))
        longest = msgspec.convert(waiting[:WAITING_TOLD], list[MlflowWait], from_attributes=True)
        return MlflowWaiting(at=time.time(), count=len(waiting), longest=longest)

    def enqueue(self, record: RunRecord) -> None:
        """Make a record pending; it is on disk when this returns. OSError on a full disk."""
        self._pending.add(record)

    def sync(self, state: BoardState, board: VersionBoard | None = None) -> bool:
        """Register what is pending, then make MLflow say what the board does; whether all of it is done.

        Aliases, tags and cards follow `state`. With `board`, cards tell who changed what and why, and what members
        counted becomes the figures that drafts served. A version without a record (the initial draft, one an operator
        put on the board) is registered with what the board knows. Blocks for PATIENCE_S at most: a slow MLflow is told
        in a thread while the learner goes on, and this returns at once until that is done. So it does, without asking,
        when nothing has changed within COMPARE_S or the wait after a failure is not over.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        is_current = self._compared == (state.last_event_id, self._pending.files())
        if is_current and self._clock() - self._compared_at_s < COMPARE_S:
            return not self._attempts.waiting
        if self._clock() < self._asks_again_at_s:
            return False
        self._thread = threading.Thread(target=self._tell, args=(state, board), name="paceline-mlflow", daemon=True)
        self._thread.start()
        self._thread.join(0.0 if self._is_slow else self._patience_s)
        return not self._thread.is_alive() and self._compared is not None and not self._attempts.waiting

    def _tell(self, state: BoardState, board: VersionBoard | None) -> None:
        began = time.monotonic()
        with self._pending.alone() as is_alone:
            if is_alone:  # else another learner that shares this folder tells MLflow the same
                is_told = self._attempt(lambda: self._sync(state, board))
                self._compared = (state.last_event_id, self._pending.files()) if is_told else None
                self._compared_at_s = self._clock()
        self._is_slow = time.monotonic() - began > self._patience_s

    def _attempt(self, act: Callable[[], None]) -> bool:
        try:
            with using(self._uri):
                self._connect()
                act()
                self._attempts.end()
        except Exception as error:  # noqa: BLE001 - MLflow passes on whatever its store raises; none may stop delivery
            retry_s = self._attempts.give_up(error)
            self._asks_again_at_s = self._clock() + retry_s
            pending = f"{len(self._pending)} registrations pending" if len(self._pending) else "aliases and cards wait"
            _log.warning("MLflow: %s; %s, next try in %g s", reason(error), pending, retry_s)
            return False
        return True

    def _connect(self) -> None:
        """Every time: what was deleted there is made again."""
        self._store = open_store(self._uri, self._model, self._artifacts)

    def _sync(self, state: BoardState, board: VersionBoard | None) -> None:
        store = self._store
        assert store is not None  # noqa: S101 - _connect came first
        self._attempts.begin(store.ask)
        registered = store.versions().keys() if len(self._pending) else set()
        for file in self._pending.files():
            action = f"remove {file} to have the draft registered with what the board knows of it"
            self._attempts.do(
                f"draft {number_of(file)}",
                partial(self._register, store, file, registered),
                file.stat().st_mtime,
                action,
            )
        waiting = {number_of(file) for file in self._pending.files()}
        self._mirror.reflect(store, state, board=board, write=self._run_of, waiting=waiting)

    def _register(self, store: ModelStore, file: Path, registered: Collection[Key]) -> None:
        record = read_record(file)
        if record.key not in registered:
            self._mirror.register(store, record, self._run_of(store, record))
        file.unlink()

    def _run_of(self, store: ModelStore, record: RunRecord) -> str:
        """The version's run with everything logged; a run that an interrupted attempt began is completed."""
        return write_run(store, record)


def open_registry(config: LearnerConfig) -> Registry:
    """Return the registry of a speculator; it connects to MLflow only when it is first used."""
    artifacts = config.data_dir / "mlflow-artifacts"
    pending = open_pending(config)
    return Registry(
        config.tracking_uri,
        config.registered_model,
        pending=pending,
        artifacts=artifacts,
        versions=config.versions_dir,
        pages=config.mlflow_pages,
    )
