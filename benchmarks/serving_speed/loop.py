"""paceline's loop beside the servers: Redis and a learner, which is stopped while it must not disturb."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

import msgspec

from ...buffer.board.counters import counters_of
from ...buffer.board.member_status import PacingSaid
from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.config import BufferConfig
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...rig.deployment import LEARNER, LocalDeployment
from ...rig.models.target import TargetModel
from ...rig.reader import SpeculatorReader, drain_check
from ...rig.services import Service, learner_service, redis_service
from ...rig.speed.arm import PACED_STEPS, Arm
from ..measure.measured_server import wait_until
from ..measure.processes import resumed, suspended
from .recorded import Hold

#: A round of a slow machine, with what waited before it.
ROUND_LIMIT_S = 900.0
#: A round must not lose its lease while the learner is stopped for the turns of the other arms.
LEASE_S = 300.0
REDIS_PATIENCE_S = 30.0
PACED_BY = "goodput"


class Loop:
    """A Redis for all arms and a learner for one of them. The learner stands still but in `beside` and `catch_up`."""

    def __init__(
        self, learner: Service, readers: Mapping[str, SpeculatorReader], arm: str, min_new_traces: int
    ) -> None:
        self._learner = learner
        self._readers = readers
        self._arm = arm
        self._min_new = min_new_traces
        self._reader = readers[arm]
        # as last heard
        self._busy_s = 0.0
        self._rounds = 0
        self._hear()
        self._noted_s = self._busy_s  # what it took to start is no learning

    @property
    def live(self) -> int | None:
        """The version that its server should draft with; None before there is one."""
        return self._reader.live()

    def is_swapped(self) -> bool:
        """Whether its server drafts with the live version."""
        return self._reader.replica_status().draft_version == self._reader.live()

    def is_paced(self) -> bool:
        """Whether every arm with paceline chooses its steps by the default policy."""
        return {_pacing(reader).policy for reader in self._readers.values()} == {PACED_BY}

    def beside(self, arm: str) -> AbstractContextManager[object]:
        """Let the learner run while its own arm is asked, and not while another one is."""
        return self._running() if arm == self._arm else nullcontext()

    def catch_up(self, chunk: int) -> Hold:
        """Let the learner learn what was captured, and wait until the server drafts with what came of it."""
        began_s = time.monotonic()
        wait_until(drain_check(self._reader.replica_status), "traces to be delivered")
        with self._running():
            wait_until(
                lambda: not self._reader.is_learning(self._min_new), "the learner to end its round", ROUND_LIMIT_S
            )
            wait_until(self.is_swapped, "the newest draft to be swapped in")
            wait_until(is_idle_since(self._reader, time.time()), "the learner to be idle")
        return self.noted(chunk, time.monotonic() - began_s)

    def noted(self, chunk: int, held_s: float | None = None) -> Hold:
        """What there is to say between two chunks; `held_s` is how long traffic was held, None where it is not."""
        pacing = {arm: msgspec.to_builtins(_pacing(reader)) for arm, reader in self._readers.items()}
        self._hear()
        spent_s = self._busy_s - self._noted_s
        self._noted_s = self._busy_s
        # A learner that was stopped within a phase has the time until it went on charged to it.
        learner_s = None if held_s is None else min(spent_s, held_s)
        return Hold(chunk=chunk, seconds=held_s, learner_seconds=learner_s, rounds=self._rounds, pacing=pacing)

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._learner.ensure_running()
        with resumed(self._learner.pid):
            yield
            self._hear()

    def _hear(self) -> None:
        counters = counters_of(self._reader.learner_status().counters)
        if counters is not None and counters.learner is not None:
            seconds = counters.learner.seconds
            self._busy_s = sum(spent for phase, spent in seconds.items() if phase != "idle")
            self._rounds = counters.learner.rounds


def is_idle_since(reader: SpeculatorReader, since: float) -> Callable[[], bool]:
    """Return a check to be polled: whether the learner said after `since`, unix seconds, that it is in no phase."""

    def is_idle() -> bool:
        status = reader.learner_status()
        is_fresh = status.at is not None and status.at > since
        return is_fresh and status.work is not None and status.work.phase == "idle"

    return is_idle


@contextmanager
def redis_for(local: LocalDeployment) -> Iterator[None]:
    """The Redis of a run, with what an interrupted one left in it."""
    with redis_service(local.folder / "redis", local.redis_port):
        yield


@contextmanager
def running_loop(
    arms: Sequence[Arm], arm: Arm, *, target: TargetModel, local: LocalDeployment, chunk_requests: int
) -> Iterator[Loop]:
    """Start the learner of `arm` and stop it at the end; Redis and the servers run already.

    A learning round is due with nine tenths of a chunk, so that each chunk is learnt when it has been served.
    """
    min_new = max(1, chunk_requests * 9 // 10)
    client = connect(local.redis_url, timeout_s=REDIS_PATIENCE_S)
    with closing(client):
        readers = {}
        for each in arms:
            if each.needs_paceline:
                config = BufferConfig(speculator=each.name)
                buffer = RedisTraceBuffer(client, config)
                board = RedisVersionBoard(client, config)
                readers[each.name] = SpeculatorReader(buffer, board, each.replica, LEARNER)
        env = local.shared_env(target) | _learner_env(arm, target, local.folder, min_new)
        with learner_service(log=local.folder / "logs" / "learner.log", env=env) as learner:
            wait_until(lambda: readers[arm.name].live() is not None, "the learner to put its first draft on the board")
            wait_until(is_idle_since(readers[arm.name], time.time()), "the learner to be idle", ROUND_LIMIT_S)
            with suspended(learner.pid):
                yield Loop(learner, readers, arm.name, min_new)


def _learner_env(arm: Arm, target: TargetModel, folder: Path, min_new: int) -> dict[str, str]:
    return {
        "PACELINE_SPECULATOR": arm.name,
        "PACELINE_LEARNER": LEARNER,
        "PACELINE_TARGET_PATH": str(target.folder),
        "PACELINE_DRAFT": str(arm.draft),
        "PACELINE_DATA_DIR": str(folder.absolute() / "learner"),
        "PACELINE_MIN_NEW_TRACES": str(min_new),
        "PACELINE_DRAFT_STEPS": str(PACED_STEPS[-1]),
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "PACELINE_ROUND_LEASE_S": str(LEASE_S),
        "PACELINE_CONFIG": os.devnull,
    }


def _pacing(reader: SpeculatorReader) -> PacingSaid:
    return reader.replica_status().pacing or PacingSaid()
