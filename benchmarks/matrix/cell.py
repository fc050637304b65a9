"""One row, measured: what paceline did on a real server that was started with the row's models and flags."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from ...buffer.board.member_status import MemberStatus
from ...buffer.board.version import VersionState
from ...buffer.stream.trace import DraftTrace
from ...learner.judging.replay import replay_logprobs, replay_traces
from ...learner.model.draft import Draft
from ...learner.model.draft_io import load_draft, load_target_embedding, load_target_head, save_draft
from ...learner.training.plan import TrainingPlan
from ...learner.training.trainer import DraftTrainer
from ...policies.acceptance import identity
from ...policies.rejection import EstimatedRounds, served_beside_expected, why_not_estimated
from ...policies.verdict_words import sentence
from ...rig.prompts import Prompt
from ...rig.traffic import Served, send
from ..measure.answers import flush_cache
from ..measure.measured_server import BY, DraftWeights, MeasuredServer, under_new_ids, wait_until

MAX_TOKENS = 24
CONCURRENCY = 4
#: Over the few requests of a row: enough for a draft to have tokens accepted when it is asked the same again.
PASSES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A running server, what it was started with, and what it is asked."""

    server: MeasuredServer
    target: Path
    draft: Path  # as a folder with one file, whatever the server was given
    scratch: Path  # for the draft that is swapped in
    prompts: Sequence[Prompt]
    temperature: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """Verify rounds whose replay could be compared with what was served, and drafts accepted in all rounds."""

    equal: int
    compared: int
    accepted: int
    estimated: EstimatedRounds = field(default_factory=EstimatedRounds)  # rounds by rejection sampling

    @property
    def is_known(self) -> bool:
        """Whether any round could be compared."""
        return bool(self.compared or self.estimated.rounds)

    def __str__(self) -> str:
        drafts = f"{self.accepted} {'draft' if self.accepted == 1 else 'drafts'} accepted"
        if self.estimated.rounds and not self.compared:
            found = self.estimated
            expected = f"{found.expected:.1f} ± {math.sqrt(found.variance):.1f}"
            return f"in expectation: {found.accepted} drafts accepted in {found.rounds} rounds, {expected} expected"
        return f"{self.equal} of {self.compared} rounds, {drafts}"


def measure(case: Case, found: dict[str, str], why_no_replay: Callable[[], str]) -> None:
    """Put what paceline did into `found`, column by column, as soon as it is known.

    Blocks while requests are served. `why_no_replay` gives paceline's own reason for judging by other means than
    replay; it is called where no round can be compared. Raises, or exits, as servers and learners do.
    """
    wait_until(lambda: case.server.reader.replica_status().at, "the replica's heartbeat")
    status = case.server.reader.replica_status()
    if status.capture != "on":
        found["capture"] = f"no: {status.capture_reason}"
        found["replay"] = found["swap"] = "no: nothing is captured"
        found["pacing"] = paced(status)
        return
    served, traces = serve(case)
    status = case.server.reader.replica_status()  # of a replica that has delivered all of them
    found["capture"] = captured(served, traces, status.account.dropped)
    if not status.has_draft:
        found["replay"] = found["swap"] = f"no: {status.swap_reason}"
        found["pacing"] = paced(status)
        return
    draft = loaded(case, case.draft)
    found["replay"] = judged(replayed(draft, traces), why_no_replay)
    found["pacing"] = paced(status)
    found["swap"] = f"no: {status.swap_reason}" if status.swap != "on" else swapped(case, draft, traces)


def serve(case: Case) -> tuple[list[Served], list[DraftTrace]]:
    """Ask every prompt under a new id; return the answers and the traces of them. Exits when a request fails."""
    prompts = under_new_ids(case.prompts)
    flush_cache(case.server.url)  # a prompt asked before would be prefilled in part, and its rounds not be replayed
    asked = send(case.server.url, prompts, concurrency=CONCURRENCY, max_tokens=MAX_TOKENS, temperature=case.temperature)
    served = asyncio.run(asked)
    failed = [one.failure for one in served if one.failure]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(served)} requests failed: {failed[0]}")
    case.server.drained()
    ids = {prompt.request_id for prompt in prompts}
    return served, [entry.trace for entry in case.server.buffer.replay(10_000) if entry.trace.request_id in ids]


def captured(served: Sequence[Served], traces: Sequence[DraftTrace], dropped: Mapping[str, int]) -> str:
    """Cell of the column `capture`; `dropped` counts the trace windows that the replica reports as lost, by reason."""
    pairs = by_request(served, traces)
    if all(is_whole(one, parts) for one, parts in pairs):
        return "yes"
    wrong = wrong_requests(pairs)
    if wrong:
        return f"no: the traces of {wrong} of {len(served)} requests differ from the answers"
    held = sum(trace.committed_len for trace in traces)
    tokens = sum(len(one.output_ids) for one in served)
    lost = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
    return f"in part: {held} of {tokens} tokens, each as answered; trace windows dropped: {lost or 'none'}"


Pairs = Sequence[tuple[Served, Sequence[DraftTrace]]]


def by_request(served: Sequence[Served], traces: Sequence[DraftTrace]) -> Pairs:
    """Every answer with its traces."""
    ids = [trace.request_id for trace in traces]
    return [
        (one, [trace for name, trace in zip(ids, traces, strict=True) if name == one.prompt.request_id])
        for one in served
    ]


def wrong_requests(pairs: Pairs) -> int:
    """Requests with a trace that is no part of prompt and answer, or whose traces miss nothing but accepted drafts."""
    return sum(not (is_whole(one, parts) or is_part(one, parts)) for one, parts in pairs)


def is_whole(served: Served, traces: Sequence[DraftTrace]) -> bool:
    """Whether the traces hold the tokens of the answer and as many accepted drafts as SGLang counted."""
    committed = [token for trace in traces for token in trace.tokens[trace.context_len :].tolist()]
    accepted = sum(int(trace.rounds.accepted.sum()) for trace in traces)
    return committed == list(served.output_ids) and accepted == served.tally.accepted


def is_part(served: Served, traces: Sequence[DraftTrace]) -> bool:
    """Whether the traces hold tokens of prompt and answer, each at its place, and not the whole answer."""
    text = [*served.prompt.input_ids, *served.output_ids]
    is_right = all(trace.tokens.tolist() == text[trace.offset :][: len(trace.tokens)] for trace in traces)
    return is_right and sum(trace.committed_len for trace in traces) < len(served.output_ids)


def replayed(draft: Draft, traces: Sequence[DraftTrace]) -> Replayed:
    """The draft over the traces that it has served."""
    steps = max((trace.rounds.drafted.shape[1] for trace in traces), default=1)
    runs = replay_traces(draft, traces, max(steps, 1))
    pairs = [identity(trace, run) for trace, run in zip(traces, runs, strict=True)]
    accepted = sum(int(trace.rounds.accepted.sum()) for trace in traces)
    drawn = [trace for trace in traces if trace.replay_exact and not why_not_estimated(trace)]
    logprobs = replay_logprobs(draft, drawn, max(steps, 1))
    estimates = [served_beside_expected(trace, logq) for trace, logq in zip(drawn, logprobs, strict=True)]
    equal = sum(equal for equal, _ in pairs)
    compared = sum(compared for _, compared in pairs)
    return Replayed(equal, compared, accepted, sum(estimates, EstimatedRounds()))


def judged(replay: Replayed, why_not: Callable[[], str]) -> str:
    """Cell of the column `replay`: a figure, or why there is none."""
    return str(replay) if replay.is_known else f"no: {why_not() or 'no round could be compared'}"


def swapped(case: Case, draft: Draft, traces: Sequence[DraftTrace]) -> str:
    """Cell of the column `swap`: a draft trained on the traces is swapped in, and what it serves is replayed."""
    server = case.server
    learned = case.scratch / "learned"
    trainer = DraftTrainer(draft, TrainingPlan(passes=PASSES))
    trainer.fit(traces, [])
    save_draft(trainer.draft, learned)
    initial = server.register(DraftWeights.of(case.draft), "initial")
    server.board.move(initial, VersionState.LIVE, BY, "served from the start")
    number = server.register(DraftWeights.of(learned), "learned")
    refusal = go_live(server, number)
    if refusal:
        return f"no: {refusal}"
    served, after = serve(case)
    if {trace.draft_version for trace in after} != {number}:
        return f"no: traces name versions {sorted({trace.draft_version for trace in after})}, expected {number}"
    replay = replayed(loaded(case, learned), after)
    figure = str(replay) if replay.is_known else f"{replay.accepted} drafts accepted"
    wrong = wrong_requests(by_request(served, after))
    return f"no: after it the traces of {wrong} requests differ from the answers" if wrong else f"yes: {figure}"


def go_live(server: MeasuredServer, number: int) -> str:
    """Make the version live and wait until the server drafts with it; return why not where it is refused."""
    server.board.move(number, VersionState.LIVE, BY, "learned")

    def is_settled() -> bool:
        is_refused = server.board.read().rows[number].state is VersionState.ROLLED_BACK
        return is_refused or server.reader.replica_status().draft_version == number

    wait_until(is_settled, f"version {number} to be swapped in")
    row = server.board.read().rows[number]
    return sentence(row.why) if row.state is VersionState.ROLLED_BACK else ""


def loaded(case: Case, folder: Path) -> Draft:
    """A draft of the case's target."""
    torch.set_num_threads(1)
    head = partial(load_target_head, case.target)
    return load_draft(folder, load_target_embedding(case.target), target_head=head)


def paced(status: MemberStatus) -> str:
    """Cell of the column `pacing`."""
    pacing = status.pacing
    if pacing is None:
        return "no: the replica reports none"
    if pacing.reason:
        return f"no: {pacing.reason}"
    lengths = sorted({int(length) for row in pacing.steps.values() for length in row})
    return f"yes: {pacing.policy}, steps chosen: {', '.join(map(str, lengths)) or 'none yet'}"
