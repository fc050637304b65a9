"""What one forward did to one request, as plain host data.

Named tuples, not dataclasses: thousands are made per second beside SGLang's scheduler.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...buffer.stream.trace import FeatureDtype, Float16s, Float32s, Int32s, Sampling, TreeShape, VerdictRule, no_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a client asked for, as far as a trace needs it."""

    tenant: str
    sampling: Sampling
    verdict_rule: VerdictRule
    label: str = ""  # empty: the client named none, or none that may be kept
    is_label_refused: bool = False  # it named one that may not be kept
    prompt: str = ""  # prompt_key


class Commit(NamedTuple):
    """What became visible by one forward."""

    output_index: int  # visible output tokens before the forward; -1: nothing became visible
    tokens: tuple[int, ...]
    finish: str  # why the request ended with this forward; empty: it continues


#: Of a forward whose commits are not known.
NOTHING_VISIBLE = Commit(-1, (), "")


NO_TOKENS: Int32s = no_tokens()


@dataclass(frozen=True, slots=True)
class TeacherWidth:
    """How many of the target's choices are recorded per verified node, by how the request is served."""

    sampled: int
    greedy: int = 1  # its verdicts compare with the best token, and so do its labels

    def of(self, is_greedy: bool) -> int:
        """Entries of one request's nodes."""
        return self.greedy if is_greedy else self.sampled


class RequestPrefill(NamedTuple):
    """One prefill chunk of one request."""

    request_id: str
    draft_version: int
    target_version: str  # of the weights that this forward ran with
    facts: RequestFacts
    start: int  # position of ids[0]; positions before it came from the prefix cache or an earlier chunk
    ids: Int32s  # [n] tokens the target read
    features: npt.NDArray[Any]  # [n, D]; [0, 0] when not captured
    feature_dtype: FeatureDtype
    commit: Commit
    prefix: Int32s = NO_TOKENS  # [start] tokens before ids[0]; [0] when they are not captured


class RequestVerify(NamedTuple):
    """One verify round of one request."""

    request_id: str
    draft_version: int
    target_version: str  # of the weights that this forward ran with
    root: int  # position of the root in the request
    root_token: int
    drafted: Int32s  # [S]
    accepted: int
    teacher_ids: Int32s  # [S + 1, K]
    teacher_logprobs: Float16s  # [S + 1, K]
    features: npt.NDArray[Any]  # [accepted + 1, D] of the root and the accepted drafts; [0, 0] when not captured
    feature_dtype: FeatureDtype
    commit: Commit
    is_tree: bool = False  # `drafted` is what DraftTrace keeps of a tree
    tree: TreeShape | None = None  # how it grew; None of NGRAM's
    committed_logprobs: Float32s | None = None  # [S + 1, 2]: see VerifyRounds


RequestForward = RequestPrefill | RequestVerify

NO_FEATURES: npt.NDArray[np.float32] = np.zeros((0, 0), np.float32)
