"""A board, version folders and a real MLflow on SQLite, for the tests of what is recorded there."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.buffer.board.counters import Counters, DraftPositions, ServedCell, ServedCounters
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.version import DraftVersion, VersionState
from paceline.learner.delivery.mlflow_registry import COMPARE_S, Registry
from paceline.learner.delivery.pending_registrations import PendingRegistrations
from paceline.learner.delivery.run_record import record_of, scores_of
from paceline.learner.training.trainer import FitReport, TrainingPlan
from paceline.policies.line_delivery import Ground
from paceline.policies.prediction import Prediction
from paceline.policies.promotion import Measured, Promotion, Verdict
from paceline.policies.readings.ratio_sums import RatioSums
from twins.memory_board import MemoryVersionBoard

MODEL = "paceline-chat"
#: A busy machine may take its time, and what is registered is asserted.
FOR_EVER_S = 600.0
GATE = Promotion(
    verdict=Verdict.PROMOTE,
    reason=because(ReasonCode.TRUSTED, gain=0.5, gain_low=0.1, gain_high=0.9, confidence=0.95),
    measured=Measured(gain=0.5, interval=(0.1, 0.9), line_accept_length=2.5, reference_accept_length=2.0, requests=12),
    ground=Ground.TRUST,
    reference=0,
    prediction=Prediction(2.6, 0.25, 30),
)
FIT = FitReport(
    losses=(3.0, 2.0, 1.0),
    steps=3,
    skipped_steps=0,
    seconds=1.5,
    first_position_accept=float("nan"),
    first_position_attainable=float("nan"),
    mean_acceptance=(),
    is_cold=True,
    weighting="survival",
    context_weight=1.0,
    learning_rate=0.003,
    out_of_vocabulary_labels=0,
    unusable_traces=0,
    part_tokens=8192,
)


class Clock:
    """Seconds that a test sets."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class House:
    """A board, version folders and a place for MLflow's files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unix = Clock(1_700_000_000.0)  # the board's
        self.board = MemoryVersionBoard(self.unix)
        self.pending = folder / "pending"
        self.uri = f"sqlite:///{folder}/mlflow.db"
        self.clock = Clock()

    def registry(self, uri: str | None = None, pages: str = "") -> Registry:
        pending = PendingRegistrations(self.pending)
        artifacts = self.folder / "artifacts"
        return Registry(
            uri or self.uri,
            MODEL,
            pending=pending,
            artifacts=artifacts,
            clock=self.clock,
            pages=pages,
            patience_s=FOR_EVER_S,
        )

    def version(self, number: int, sha: str = "") -> DraftVersion:
        """Register a version with weights of its own on the board."""
        folder = self.folder / f"v{number:06d}"
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"number": {number}}}')
        parent = number - 1 if number else None
        window = ("5-0", "9-0") if number else ("", "")
        scores = scores_of(GATE) if number else {}
        uri = folder.as_uri()
        sha = sha or f"{number:064d}"
        version = DraftVersion(
            number=number,
            parent=parent,
            target="llama",
            target_version="7",
            drafter="eagle3",
            weights_uri=uri,
            sha256=sha,
            objective="committed",
            trained_on=window,
            scores=scores,
        )
        self.board.register(version, "learner", "why")
        return version

    def remove(self, number: int) -> None:
        (self.folder / f"v{number:06d}" / "config.json").unlink()
        (self.folder / f"v{number:06d}").rmdir()

    def enqueue(self, registry: Registry, number: int, first_step: int = 0, sha: str = "") -> None:
        version = self.version(number, sha)
        registry.enqueue(record_of(version, TrainingPlan(), FIT, GATE, born_at=1_700_000_000.0, first_step=first_step))

    def move(self, number: int, state: VersionState) -> None:
        self.board.move(number, state, "learner", "why")


def synced(house: House, registry: Registry) -> bool:
    """Tell MLflow once more: whether all of it is done."""
    house.clock.now_s += COMPARE_S
    return registry.sync(house.board.read(), house.board)


def serve(house: House, draft: int, requests: int, rounds: int = 20, accepted: int = 30) -> RatioSums:
    """A replica's beat whose counters say that `requests` equal requests of `draft` have ended; their sums."""
    one = RatioSums.of(rounds, accepted)
    sums = RatioSums.of_row(requests * value for value in asdict(one).values())
    ended = tuple(asdict(sums).values())
    positions = DraftPositions(draft=draft, tried=[sums.rounds, sums.accepted], stood=[sums.accepted // 2, 3])
    positions.output_rounds, positions.output_accepted = [sums.rounds - 40, 0, 40], [sums.accepted - 20, 0, 20]
    positions.context_rounds, positions.context_accepted = [sums.rounds], [sums.accepted]
    cell = ServedCell(draft=draft, label="py", kind="greedy", rounds=sums.rounds, accepted=sums.accepted, ended=ended)
    house.unix.now_s += 10.0  # a later entry of the history
    counters = Counters(at=house.unix.now_s, boot="a", served=ServedCounters(cells=[cell], positions=[positions]))
    house.board.beat("replica:a", MemberStatus(counters=counters), 60.0)
    return sums


def named(client: Any) -> dict[str, str]:
    """Alias -> paceline's version number, of the aliases that follow the board; `draft-N` must name draft N."""
    aliases = client.get_registered_model(MODEL).aliases
    found = {name: client.get_model_version(MODEL, at).tags["paceline.version"] for name, at in aliases.items()}
    assert all(number == name.removeprefix("draft-") for name, number in found.items() if name.startswith("draft-"))
    assert {name for name in found if name.startswith("draft-")} == {
        f"draft-{v.tags['paceline.version']}" for v in client.search_model_versions()
    }
    return {name: number for name, number in found.items() if not name.startswith("draft-")}


def alias(client: Any, name: str) -> Any:
    return client.get_model_version_by_alias(MODEL, name)


def weights_of(client: Any, version: Any) -> set[str]:
    """The draft's files beside MLflow's own in its logged model, downloaded as MLflow's URI gives them."""
    from mlflow.artifacts import download_artifacts

    uri = client.tracking_uri
    folder = Path(download_artifacts(f"models:/{MODEL}/{version.version}", tracking_uri=uri, registry_uri=uri))
    return {file.name for file in folder.iterdir()} - {"MLmodel", "registered_model_meta"}
