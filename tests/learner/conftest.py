"""A learner on a real buffer, board and trainer, with folders that outlive it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner_traffic import BATCH, SHARE
from paceline.buffer.config import BufferConfig
from paceline.buffer.stream.trace import DraftTrace
from paceline.buffer.stream.trace_codec import encode_trace
from paceline.learner.claim.claim_limiter import ClaimLimiter
from paceline.learner.config import LearnerConfig
from paceline.learner.delivery.mlflow_registry import Registry
from paceline.learner.delivery.pending_registrations import PendingRegistrations
from paceline.learner.delivery.tracking.mlflow_library import open_client, using
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.learner.round import learning_round
from paceline.learner.round.loop import Learner
from paceline.learner.training import trainer
from paceline.learner.training.trainer import DraftTrainer
from twins.memory_board import MemoryVersionBoard
from twins.memory_stream import MemoryTraceBuffer

#: Nothing listens there, so every version of these tests stays pending; test_mlflow_registry.py has a real MLflow.
NO_MLFLOW = "http://127.0.0.1:9"


class Clock:
    """Unix seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class House:
    """Buffer, board and folders that outlive the learners working on them."""

    def __init__(self, speculator: Any, folder: Path) -> None:
        self.speculator = speculator
        self.clock = Clock()
        self.buffer = MemoryTraceBuffer(BufferConfig(), self.clock)
        self.board = MemoryVersionBoard(self.clock)
        self.pending = folder / "pending"
        self.config = LearnerConfig(
            target="target",
            target_path=speculator.target,
            initial_draft=speculator.draft,
            target_version="1",
            data_dir=folder / "data",
            min_new_traces=8,
            replay_traces=30,
            passes=2,
            training_share=0.0,  # how long training takes differs from run to run, and must not decide what is learnt
            holdout_share=SHARE,
            rest_after_requests=40,
            device="cpu",
        )
        self.fitted: list[list[str]] = []  # fresh trace ids of every learning round that trained, in all its blocks
        self.replayed: list[list[str]] = []  # replayed trace ids of the first block of each
        self.sent = 0

    def learner(self, **changes: object) -> Learner:
        """A learner as a new process would have it, in memory once the claim of the one before on its name expired."""
        getattr(self.board, "_boots", {}).clear()
        pending = PendingRegistrations(self.pending)
        registry = Registry(
            NO_MLFLOW, "paceline-default", pending=pending, artifacts=self.config.data_dir / "artifacts"
        )
        return Learner(replace(self.config, **changes), self.buffer, self.board, registry=registry)

    def send(self, count: int = BATCH, **changes: object) -> list[DraftTrace]:
        """Serve and append `count` new traces."""
        traces = [self.speculator.serve(i, **changes) for i in range(self.sent, self.sent + count)]
        self.sent += count
        self.buffer.append(traces)
        return traces

    def send_again(self, *traces: DraftTrace) -> None:
        """As a server does whose earlier delivery has left the stream."""
        self.buffer._append_raw([encode_trace(trace) for trace in traces])

    def let_claims_lapse(self) -> None:
        self.clock.now += 1 + BufferConfig().claim_idle_ms / 1000

    def let_leases_lapse(self) -> None:
        self.clock.now += 1 + self.config.round_lease_s

    def draft(self, number: int) -> Any:
        """Weights of a published version, as a server would read them."""
        folder = self.config.versions_dir / f"v{number:06d}"
        return load_draft(folder, load_target_embedding(self.speculator.target))


@pytest.fixture
def house(tiny_speculator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    # On any processor, and fast: float32.
    monkeypatch.setattr(trainer, "has_bfloat16", lambda _: False)
    made = House(tiny_speculator, tmp_path)
    fit, learn, is_first = DraftTrainer.fit, learning_round.learn, [True]

    def recorded(
        self: DraftTrainer, fresh: Sequence[DraftTrace], window: Sequence[DraftTrace], part_tokens: int | None
    ) -> Any:
        if is_first[0]:
            made.fitted.append([])
            made.replayed.append([trace.trace_id for trace in window])
        is_first[0] = False
        made.fitted[-1] += [trace.trace_id for trace in fresh]
        return fit(self, fresh, window, part_tokens)

    def begun(*arguments: Any, **named: Any) -> Any:
        is_first[0] = True
        return learn(*arguments, **named)

    monkeypatch.setattr(learning_round, "learn", begun)
    monkeypatch.setattr(DraftTrainer, "fit", recorded)
    yield made
    counts = made.buffer.counts()
    assert counts.delivered == counts.pending + counts.dead_lettered + sum(counts.acked.values()) + counts.trimmed


@pytest.fixture
def fearless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarted learners claim the same traces at once, instead of a quarter of what their predecessor died with."""
    monkeypatch.setattr(ClaimLimiter, "load_attempt", lambda _: None)


@pytest.fixture(scope="session")
def empty_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without anything in it, to be copied: making its tables takes seconds."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with using(f"sqlite:///{file}"):
        client = open_client(f"sqlite:///{file}")
        client.search_experiments(max_results=1)
        client.search_registered_models(max_results=1)
    return file
