"""Every metric of the exporter: its name, kind, labels and meaning; said here alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ...buffer.board.counters import LENGTH_EDGES, STEP_MS_EDGES


class Kind(StrEnum):
    """As Prometheus means it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric. Absent means unknown; no metric is 0 because nobody told."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()  # upper edges of a histogram's buckets, the last one left out, which is open

    def row(self) -> str:
        """As docs/monitoring.md lists it, which says once that all but one have the label `speculator`."""
        labels = [label for label in self.labels if label != "speculator"]
        return f"| `{self.name}` | {self.kind} | {', '.join(labels)} | {self.meaning} |"


_ONE = ("speculator",)
_MEMBER = ("speculator", "member")
_DRAFT = ("speculator", "draft")
_CELL = (*_MEMBER, "draft", "label", "kind")
_STEP = (*_MEMBER, "batch", "steps")


def _gauge(name: str, labels: tuple[str, ...], meaning: str) -> Family:
    return Family(name=f"paceline_{name}", kind=Kind.GAUGE, meaning=meaning, labels=labels)


def _counter(name: str, labels: tuple[str, ...], meaning: str) -> Family:
    return Family(name=f"paceline_{name}_total", kind=Kind.COUNTER, meaning=meaning, labels=labels)


def _histogram(name: str, labels: tuple[str, ...], edges: tuple[float, ...], meaning: str) -> Family:
    return Family(name=f"paceline_{name}", kind=Kind.HISTOGRAM, meaning=meaning, labels=labels, edges=edges)


_BOARD = (
    _gauge("up", (), "1 if Redis answered this scrape; 0, and nothing else of the board, if not"),
    _gauge("speculator_readable", _ONE, "1 if the board of this speculator could be read, else 0"),
    _gauge("board_timestamp_seconds", _ONE, "the time of the scrape by the clock of Redis, unix seconds"),
    _gauge("live_draft", _ONE, "number of the live version; absent while none is live"),
    _gauge("canary_draft", _ONE, "number of the version on trial; absent while there is none"),
    _gauge("draft_info", (*_DRAFT, "state", "parent", "sha256"), "1 for each of the newest versions"),
    _gauge("draft_changed_timestamp_seconds", _DRAFT, "when the state of the version changed last, unix seconds"),
    _gauge("gate_predicted_accept_length", _DRAFT, "accept length predicted by replay when it was published"),
    _gauge("gate_requests", _DRAFT, "requests that the verdict on the version was judged on"),
    _gauge("gate_median_age_seconds", _DRAFT, "median age of these requests when they were judged"),
)
_MEMBERS = (
    _gauge("member_last_seen_timestamp_seconds", _MEMBER, "last beat by the clock of Redis; not of members that ended"),
    _gauge("member_alive", _MEMBER, "1 while the heartbeat has not expired, else 0; for the 7 days after the last"),
    _gauge("alarm", (*_MEMBER, "name"), "1 for each alarm that is active, as `paceline alarms` lists them"),
    _gauge("member_draft", _MEMBER, "number of the version that a replica drafts with"),
    _gauge("capture_on", _MEMBER, "1 while a replica captures, 0 once capture is off"),
    _gauge("last_swap_timestamp_seconds", _MEMBER, "when a replica's newest swap ended, unix seconds"),
    _gauge("last_swap_seconds", (*_MEMBER, "part"), "what that swap took: to stage the weights, to commit them"),
    _gauge("last_swap_accept_length", (*_MEMBER, "side"), "what was served before and after that swap"),
    _gauge(
        "plain_tokens_per_second", (*_MEMBER, "source", "batch"), "plain decoding, by who measured it: steps, pacing"
    ),
    _gauge(
        "mlflow_pending_registrations", _MEMBER, "versions, cards, aliases that a learner could not yet tell MLflow"
    ),
)
_SERVED = (
    _counter("verify_rounds", _MEMBER, "verify rounds of captured requests"),
    _counter("verify_accepted", _MEMBER, "drafted tokens accepted in them; accept length is 1 + accepted / rounds"),
    _counter("draft_verify_rounds", (*_MEMBER, "draft"), "verify rounds by draft: the newest 8, and `older`"),
    _counter("draft_verify_accepted", (*_MEMBER, "draft"), "drafted tokens accepted in them"),
    _counter("label_verify_rounds", _CELL, "verify rounds by draft, label and sampling: 16 labels, and `other`"),
    _counter("label_verify_accepted", _CELL, "drafted tokens accepted in them"),
    _counter(
        "drafts_tried", (*_MEMBER, "draft", "position"), "rounds whose drafts before a position, 1 the first, stood"
    ),
    _counter("drafts_stood", (*_MEMBER, "draft", "position"), "of these, those that accepted the draft there too"),
    _counter("verify_rounds_unattributed", _MEMBER, "rounds of requests whose beginning was not seen: in no other"),
    _histogram("request_accept_length", _MEMBER, LENGTH_EDGES, "captured requests that ended, by their accept length"),
)
_SCHEDULER = (
    _histogram(
        "decode_step_seconds", _STEP, tuple(edge / 1000 for edge in STEP_MS_EDGES), "decode steps; 0 steps are plain"
    ),
    _counter("decode_step_tokens", _STEP, "tokens that these decode steps committed, of all requests"),
    _counter("decode_step_requests", _STEP, "sum of the batch sizes of these decode steps"),
    _counter("committed_tokens", _MEMBER, "tokens that all decode steps committed"),
    _counter("scheduler_seconds", (*_MEMBER, "phase"), "time of the scheduler's clock: decode, prefill, swap, idle"),
    _counter("engine_requests", _MEMBER, "requests that ended, captured or not, as SGLang counts them"),
    _counter(
        "engine_counted_requests",
        _MEMBER,
        "of them, those with penalties or min_new_tokens, which paceline counts token by token",
    ),
    _counter("engine_verify_rounds", _MEMBER, "verify rounds of all that ended"),
    _counter("engine_verify_accepted", _MEMBER, "accepted drafted tokens of all that ended"),
    _counter("swaps", (*_MEMBER, "result"), "swaps by result: done, refused"),
)
_LOOP = (
    _counter("traces_captured", _MEMBER, "traces captured"),
    _counter("traces", (*_MEMBER, "fate", "reason"), "traces delivered and dropped, and requests skipped, by reason"),
    _gauge("traces_waiting", (*_MEMBER, "where"), "captured traces on their way: open, queued"),
    _counter("buffer_delivered", _MEMBER, "traces appended to the buffer; every learner tells of the same one"),
    _counter("buffer_acked", (*_MEMBER, "outcome"), "traces of the buffer that were acked, by outcome"),
    _counter("buffer_trimmed", _MEMBER, "traces of the buffer that were trimmed before anybody acked them"),
    _counter("buffer_dead_lettered", _MEMBER, "traces of the buffer that became dead letters"),
    _gauge("buffer_pending", _MEMBER, "traces of the buffer that are not acked"),
    _gauge("buffer_entries", _MEMBER, "traces in the buffer, acked ones included"),
    _gauge("buffer_bytes", _MEMBER, "bytes of their payload"),
    _gauge("buffer_max_bytes", _MEMBER, "the bound that they are trimmed to"),
    _gauge("buffer_oldest_pending_seconds", _MEMBER, "for how long the oldest that is not acked has waited"),
    _gauge("buffer_oldest_kept_seconds", _MEMBER, "age of the oldest trace in the buffer"),
    _counter("rounds", (*_MEMBER, "kind", "verdict"), "learning rounds: learned, by verdict; rested; failed"),
    _counter("learner_drifts", _MEMBER, "rests that a learner ended since what is served had changed"),
    _counter("learner_phase_seconds", (*_MEMBER, "phase"), "time of a learner by phase"),
    _counter("learner_cpu_seconds", _MEMBER, "processor time of the learner's process"),
    _counter("learner_optimiser_steps", _MEMBER, "optimiser steps taken"),
    _counter("learner_checkpoints_not_stored", _MEMBER, "checkpoints that the store of drafts did not take"),
    _gauge("learner_busy", _MEMBER, "1 while a learning round runs, else 0"),
    _gauge("learner_resting", _MEMBER, "1 if the last learning round that decided chose to rest, 0 if to learn"),
)

FAMILIES: Mapping[str, Family] = {f.name: f for f in (*_BOARD, *_MEMBERS, *_SERVED, *_SCHEDULER, *_LOOP)}
