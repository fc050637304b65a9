"""Do traces hold what was served? One finding for each of tokens, counts, finish and context."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...buffer.stream.trace import DraftTrace
from ...rig.prompts import Prompt
from ..measure.answers import Answer, Ask, answer_all, asks
from ..measure.measured_server import MeasuredServer

MAX_TOKENS = 48
#: More traces than one run of these checks captures.
REPLAYED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: found against wanted, over `cases` cases. `is_right` is None where nothing is required."""

    name: str
    found: str
    wanted: str
    cases: int
    is_right: bool | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """One answered request with its one trace."""

    answer: Answer
    trace: DraftTrace

    @property
    def whole(self) -> list[int]:
        """Every token of the request up to the trace's last one, the cached prefix included."""
        prefix = self.answer.ask.prompt.input_ids[: self.trace.offset]
        return [*prefix, *self.trace.tokens.tolist()]


def served_mix(server: MeasuredServer, prompts: Sequence[Prompt], concurrency: int, prefix: str) -> list[Captured]:
    """Serve each prompt four times: fresh, again with a cached prefix, cut short, and ended by a stop token.

    Returns the answers with their traces; answers of one token have no verify round and are left out.
    """
    fresh = asks(prompts, f"{prefix}-fresh", MAX_TOKENS)
    first = answer_all(server.url, fresh, concurrency).answers
    waves = [
        [_renamed(ask, f"{prefix}-again-{i:04d}") for i, ask in enumerate(fresh)],
        [replace(_renamed(ask, f"{prefix}-short-{i:04d}"), max_tokens=2 + i % 17) for i, ask in enumerate(fresh)],
        [
            replace(_renamed(answer.ask, f"{prefix}-stop-{i:04d}"), stop_tokens=(answer.output_ids[12 + i % 24],))
            for i, answer in enumerate(first)
        ],
    ]
    answers = list(first)
    for wave in waves:
        answers += answer_all(server.url, wave, concurrency).answers
    return captured(server, answers)


def served_sampled(server: MeasuredServer, prompts: Sequence[Prompt], concurrency: int, prefix: str) -> list[Captured]:
    """Serve each prompt once at temperature 1, and return the answers with their traces."""
    asked = [replace(ask, temperature=1.0) for ask in asks(prompts, prefix, MAX_TOKENS)]
    return captured(server, answer_all(server.url, asked, concurrency).answers)


def captured(server: MeasuredServer, answers: Iterable[Answer]) -> list[Captured]:
    """Answers with their traces; exits when a request has none or several."""
    server.drained()
    traces: dict[str, list[DraftTrace]] = {}
    for entry in server.buffer.replay(REPLAYED):
        traces.setdefault(entry.trace.request_id, []).append(entry.trace)
    found = []
    for answer in answers:
        request_id = answer.ask.prompt.request_id
        ours = traces.get(request_id, [])
        if len(answer.output_ids) > 1:
            if len(ours) != 1:
                raise SystemExit(f"request {request_id}: got {len(ours)} traces, expected one")
            found.append(Captured(answer, ours[0]))
    return found


def exact_findings(pairs: Sequence[Captured], label: str) -> list[Finding]:
    """What must equal the answers in any dtype; `label` names the draft that served."""
    demands = {
        "committed tokens equal the answer": _has_committed_the_answer,
        "context equals the prompt after its cached part": _has_the_prompt,
        "accepted drafts equal spec_num_correct_drafts": _has_accepted_as_many,
        "rounds equal spec_verify_ct": _has_as_many_rounds,
        "offset equals cached_tokens": _starts_after_the_cache,
        "finish equals finish_reason": _ended_alike,
    }
    return [_all_equal(f"{label}: {name}", pairs, is_equal) for name, is_equal in demands.items()]


def _has_committed_the_answer(pair: Captured) -> bool:
    committed: list[int] = pair.trace.tokens[pair.trace.context_len :].tolist()
    return tuple(committed) == pair.answer.output_ids


def _has_the_prompt(pair: Captured) -> bool:
    context: list[int] = pair.trace.tokens[: pair.trace.context_len].tolist()
    return context == list(pair.answer.ask.prompt.input_ids[pair.trace.offset :])


def _has_accepted_as_many(pair: Captured) -> bool:
    return int(pair.trace.rounds.accepted.sum()) == pair.answer.tally.accepted


def _has_as_many_rounds(pair: Captured) -> bool:
    return len(pair.trace.rounds) == pair.answer.tally.rounds


def _starts_after_the_cache(pair: Captured) -> bool:
    cached_tokens: int = pair.answer.meta["cached_tokens"]
    return pair.trace.offset == cached_tokens


def _ended_alike(pair: Captured) -> bool:
    finish: Mapping[str, str] = pair.answer.meta["finish_reason"]
    return pair.trace.finish == finish["type"]


def _all_equal(name: str, pairs: Sequence[Captured], is_equal: Callable[[Captured], bool]) -> Finding:
    equal = sum(map(is_equal, pairs))
    return Finding(
        name=name,
        found=f"{equal} of {len(pairs)}",
        wanted="all",
        cases=len(pairs),
        is_right=bool(pairs) and equal == len(pairs),
    )


def _renamed(ask: Ask, request_id: str) -> Ask:
    return replace(ask, prompt=replace(ask.prompt, request_id=request_id))
