"""A speculator's last quarter of an hour, told to a board as its members would, on a clock of its own."""

from collections import Counter
from dataclasses import astuple, replace
from typing import Any

from paceline.buffer.board.counters import (
    Counters,
    DraftPositions,
    LearnerCounters,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
    TraceCounters,
)
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.reason import ReasonCode, Why, because
from paceline.buffer.board.version import DraftVersion, JudgedOn, VersionState
from paceline.policies.readings.ratio_sums import RatioSums
from said import said
from twins.memory_board import MemoryVersionBoard

START = 1_790_000_100.0
REPLICA = "replica:gpu-0"
LEARNER = "learner:bench"
#: Rounds of one request.
ROUNDS = 40


class Story:
    """Writes to a board what its members would write, second by second."""

    def __init__(self, weights: tuple[str, str] = ("file:///drafts", "0" * 64)) -> None:
        self.now = START
        self.board = MemoryVersionBoard(clock=lambda: self.now)
        self.weights = weights
        self.cells: dict[tuple[int, str], ServedCell] = {}
        self.positions: dict[int, list[list[int]]] = {}
        self.starts: dict[int, list[int]] = {}  # rounds of two buckets, then their accepted drafts
        self.traces = Counter[str]()
        self.steps = {length: StepCell(bucket=1, draft_steps=length) for length in (0, 3)}
        self.decoded = 0
        self.swaps: list[dict[str, object]] = []
        self.drafts_with = 0
        self.standing_alarms: list[dict[str, object]] = []
        self.learner = LearnerCounters()
        self.learner_status = MemberStatus(kind="idle", why="nothing to train on")

    def publish(self, number: int, parent: int | None, score: float | None = None, **changes: Any) -> None:
        """A new draft, judged by the learner."""
        uri, sha256 = self.weights
        scores = {}
        if score is not None:
            predicted = {"predicted_accept_length": score, "predicted_standard_error": 0.1}
            scores = {"judged_accept_length": score - 0.1, **predicted}
        window = (
            (f"{int((self.now - 60) * 1000)}-0", f"{int((self.now - 12) * 1000)}-0") if parent is not None else ("", "")
        )
        made = DraftVersion(
            number=number,
            parent=parent,
            target="code-7b",
            target_version="1",
            drafter="eagle3",
            weights_uri=uri,
            sha256=sha256,
            objective="soft",
            trained_on=window,
            scores=scores,
        )
        self.board.register(replace(made, **changes), LEARNER, "published after a learning round")
        self.learner.rounds += 1

    def _entry(self, age_s: float) -> str:
        """Stream id of a trace of that age."""
        return f"{int((self.now - age_s) * 1000)}-0"

    def go_live(self, number: int, why: Why) -> None:
        """The board moves on, and the replica follows."""
        self.board.move(number, VersionState.LIVE, LEARNER, why)
        self.follow()

    def refuse(self, number: int, why: str) -> None:
        """The gate says no."""
        self.board.move(number, VersionState.REFUSED, LEARNER, why)

    def drift(self) -> None:
        """The learner's drift test ends a rest."""
        self.learner.drifts += 1
        self.learner.drifted_at = self.now

    def follow(self) -> None:
        """The replica swaps in what is live."""
        before = self.drafts_with
        live = self.board.read().live or 0
        self.drafts_with = live
        if before != live:
            self.swaps.append(
                {"number": live, "before": before, "stage_ms": 3.0, "commit_ms": 1.8, "running": 0, "at": self.now}
            )

    def serve(self, label: str, accepted_per_round: float, requests: int = 1) -> None:
        """Requests that end now, of rounds with so many accepted drafts each."""
        for _ in range(requests):
            wobble = (self.traces["captured"] % 5 - 2) * 2  # requests differ, so that an interval can be given
            accepted = max(0, round(accepted_per_round * ROUNDS) + wobble)
            key = (self.drafts_with, label)
            cell = self.cells.get(key, ServedCell(draft=key[0], label=label, kind="greedy"))
            ended = RatioSums.of_row(cell.ended) + RatioSums.of(ROUNDS, accepted)
            self.cells[key] = ServedCell(
                draft=key[0],
                label=label,
                kind="greedy",
                rounds=cell.rounds + ROUNDS,
                accepted=cell.accepted + accepted,
                ended=astuple(ended),
            )
            self._count_positions(accepted / ROUNDS)
            self._count_starts(accepted)
            self.traces.update(("captured", "delivered"))
            self._decode(3, ROUNDS, ROUNDS + accepted)

    def _decode(self, draft_steps: int, steps: int, tokens: int) -> None:
        """Decode steps of one running request: 12 ms with a draft, 8 ms without."""
        cell = self.steps[draft_steps]
        cell.steps = cell.steps + steps
        cell.tokens = cell.tokens + tokens
        cell.requests = cell.requests + steps
        cell.seconds += steps * (0.012 if draft_steps else 0.008)
        self.decoded += tokens - steps

    def _count_positions(self, mean: float) -> None:
        rows = self.positions.setdefault(self.drafts_with, [[0, 0] for _ in range(4)])
        tried = ROUNDS
        for row in rows:
            stood = round(tried * min(0.95, mean / (mean + 0.9)))
            row[0] += tried
            row[1] += stood
            tried = stood

    def _count_starts(self, accepted: int) -> None:
        """The last quarter of a request's rounds begins past its output token 256, and has a tenth of the drafts."""
        row = self.starts.setdefault(self.drafts_with, [0] * 4)
        late = ROUNDS // 4, accepted // 10
        self.starts[self.drafts_with] = [
            one + more for one, more in zip(row, (ROUNDS - late[0], late[0], accepted - late[1], late[1]), strict=True)
        ]

    def counters(self) -> Counters:
        """What the replica has counted so far."""
        positions = [
            DraftPositions(
                draft=draft,
                tried=[row[0] for row in rows],
                stood=[row[1] for row in rows],
                output_rounds=self.starts[draft][:2],
                output_accepted=self.starts[draft][2:],
            )
            for draft, rows in self.positions.items()
        ]
        served = ServedCounters(cells=list(self.cells.values()), positions=positions)
        traces = TraceCounters(captured=self.traces["captured"], delivered=self.traces["delivered"])
        steps = [cell for cell in self.steps.values() if cell.steps]
        busy = sum(cell.seconds for cell in steps)
        scheduler = SchedulerCounters(
            steps=steps,
            seconds={"decode": busy, "idle": max(0.0, self.now - START - busy)},
            requests_ended=traces.captured,
            rounds=traces.captured * ROUNDS,
            accepted=self.decoded,
            swaps=len(self.swaps),
        )
        named = {"at": self.now, "boot": "boot-1", "draft": self.drafts_with}
        return Counters(**named, served=served, scheduler=scheduler, traces=traces)

    def beat(self) -> None:
        """Replica and learner say how they are."""
        status = {
            "traces": {"captured": self.traces["captured"], "delivered": self.traces["delivered"]},
            "open": 0,
            "queued": 0,
            "at": self.now,
            "capture": "on",
            "draft_version": self.drafts_with,
            "swaps": self.swaps,
            "standing_alarms": self.standing_alarms,
            "server": {"host": "gpu-0", "paceline": "0.1.0", "sglang": "0.5.23"},
            "counters": self.counters(),
        }
        self.board.beat(REPLICA, said(status), 10.0)
        self.learner_status.at = self.now
        self.learner_status.counters = Counters(at=self.now, boot="boot-2", learner=self.learner)
        self.board.beat(LEARNER, self.learner_status, 60.0)

    def run(self, seconds: float, labels: dict[str, float]) -> None:
        """Serve one request of each label every two seconds; accepted drafts per round by label."""
        end = self.now + seconds
        while self.now < end:
            for label, accepted in labels.items():
                self.serve(label, accepted)
            self._decode(0, 10, 10)
            self.beat()
            self.now += 2.0


def code_then_prose(weights: tuple[str, str] = ("file:///drafts", "0" * 64)) -> Story:
    """A draft learns code; traffic turns to prose; two drafts judged on old code are refused; prose is learnt.

    The drift test fires after the first of them was refused.
    """
    story = Story(weights)
    story.publish(0, None)
    story.go_live(0, "the draft that the server was started with")
    story.run(60, {"py": 0.05})
    code = JudgedOn(labels={"py": 40}, newest_labels={"py": 38}, median_age_s=30.0, oldest_age_s=80.0)
    for number, score, served in ((1, 1.8, 0.9), (2, 2.4, 1.35), (3, 2.7, 1.6)):
        story.publish(number, number - 1, score, judged_on=code)
        story.run(14, {"py": max(0.05, served - 0.4)})
        story.go_live(number, because(ReasonCode.PROVEN, odds=40 + number, needed=10, gain=0.41))
        story.run(100, {"py": served})
    story.run(40, {"py": 1.6, "prose": 0.45})
    old = JudgedOn(labels={"py": 27, "prose": 4}, newest_labels={"prose": 32}, median_age_s=110.0, oldest_age_s=260.0)
    story.publish(4, 3, 2.9, judged_on=old)
    story.board.move(
        4,
        VersionState.REFUSED,
        LEARNER,
        because(ReasonCode.NOT_PROVEN, odds=1.4, needed=10, gain=0.02),
    )
    story.drift()
    story.run(60, {"prose": 0.45})
    story.publish(5, 4, 2.6, judged_on=old)
    story.board.move(
        5,
        VersionState.REFUSED,
        LEARNER,
        because(ReasonCode.NOT_PROVEN, odds=0.6, needed=10, gain=-0.04),
    )
    story.run(50, {"prose": 0.45})
    prose = JudgedOn(labels={"prose": 40}, newest_labels={"prose": 36}, median_age_s=25.0, oldest_age_s=70.0)
    story.publish(6, 5, 2.3, judged_on=prose)
    story.board.move(
        6, VersionState.CANARY, LEARNER, because(ReasonCode.PROVEN, odds=212, needed=10, gain=0.85), replica=REPLICA
    )
    story.run(30, {"prose": 0.5})
    story.go_live(6, because(ReasonCode.CANARY_GAINS, gain=0.85))
    story.learner_status = MemberStatus(
        kind="learned", why="published draft 6", learn="train", learn_reason="served accept length fell"
    )
    story.run(110, {"prose": 1.3})
    return story
