"""Completion: what one request became, as SGLang's answer tells it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...buffer.errors import RolloutFailed


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens [start, end) of a completion, whose probabilities are those of the target version `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answered request. `token_ids` and `logprobs` are of the same length and hold the prompt's tokens not.

    `logprobs` are nats: log softmax(logits / temperature) of each token, by the target that committed it. SGLang does
    not renormalise them to what top-p, top-k or min-p keep.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    target_versions: tuple[VersionSpan, ...]  # in order, from token 0 to the last; several when weights moved meanwhile
    accepted: int | None  # drafts; None: the server told of no speculation
    rounds: int | None  # verify rounds; None as above
    seconds: float  # from the request's arrival to its last token, by the server's clock
    finish: str  # "stop" or "length"


def read_completion(answer: Mapping[str, Any]) -> Completion:
    """Read one answer of /generate. RolloutFailed when it was aborted, or lacks what a trainer needs."""
    meta = answer["meta_info"]
    finish = meta.get("finish_reason") or {}
    if finish.get("type") not in {"stop", "length"}:
        raise RolloutFailed(
            f"request {meta.get('id')}: got finish {finish.get('type')!r} ({finish.get('message', 'no message')}), "
            "expected 'stop' or 'length'"
        )
    ids = tuple(answer["output_ids"])
    return Completion(
        token_ids=ids,
        logprobs=_logprobs(meta, ids),
        target_versions=_spans(meta, len(ids)),
        accepted=meta.get("spec_num_correct_drafts"),
        rounds=meta.get("spec_verify_ct"),
        seconds=meta["e2e_latency"],
        finish=finish["type"],
    )


def _logprobs(meta: Mapping[str, Any], ids: Sequence[int]) -> tuple[float, ...]:
    rows = meta.get("output_token_logprobs") or ()
    if tuple(row[1] for row in rows) != tuple(ids) or any(row[0] is None for row in rows):
        raise RolloutFailed(
            f"request {meta.get('id')}: got log-probabilities of {len(rows)} tokens, expected one for each of its "
            f"{len(ids)} tokens"
        )
    return tuple(float(row[0]) for row in rows)


def _spans(meta: Mapping[str, Any], tokens: int) -> tuple[VersionSpan, ...]:
    """SGLang leaves the spans out of an answer that the version it names holds for as a whole."""
    spans = meta.get("weight_versions") or [{"version": meta["weight_version"], "start": 0, "end": tokens}]
    found = tuple(VersionSpan(str(span["version"]), span["start"], span["end"]) for span in spans)
    bounds = [0, *(span.end for span in found)]
    if [span.start for span in found] != bounds[:-1] or bounds[-1] != tokens:
        raise RolloutFailed(f"request {meta.get('id')}: got versions {found}, expected them to cover {tokens} tokens")
    return found
