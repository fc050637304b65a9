"""DraftTrace: one trace window, a contiguous part of one request, that serving writes and learners read.

Alignment, written once and enforced on construction (T tokens, R verify rounds, S drafts per round, K teacher entries):

- ``tokens[:context_len]`` is context and carries no verdict; the rest was committed by the target.
- Round r starts at its root ``tokens[starts[r]]``, already committed. Draft j of the round proposes
  ``tokens[starts[r] + 1 + j]``. ``accepted[r]`` drafts are accepted; the token after them is the target's own.
  So ``starts[r + 1] == starts[r] + accepted[r] + 1``; the last round may be cut by the end of the request.
- A round without drafts is a step of plain decoding: it commits one token.
- Verified node 0 of a round is its root, node j + 1 its draft j. ``teacher_*[r, n]`` is the target's top-K for
  the token that follows node n, also past the first rejection (there: given the rejected path).
- Of a round that drafted a tree (`is_tree`), the chain kept is the accepted path and the first child of its last node,
  if it has one: the draft that was rejected there. The tree's other branches are not kept: `tree` says how they grew.
- ``features[i]`` is what the target computed at ``tokens[i]``; F rows cover ``tokens[:F]``.
- ``prefix`` are the request's tokens before ``tokens[0]``: all ``offset`` of them, or none where they are not known.
  They are kept where features are not, since who recomputes features needs all that the target had read.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import TraceInvalid
from .feature_rows import NO_SCALES, STORED_AS, FeatureDtype, Features, Float32s, as_float32

__all__ = [
    "NO_DRAFT", "DraftTrace", "FeatureDtype", "Features", "Float16s", "Float32s", "Int32s", "Sampling", "TreeShape",
    "VerdictRule", "VerifyRounds", "no_tokens",
]  # fmt: skip

Int32s = npt.NDArray[np.int32]
Float16s = npt.NDArray[np.float16]

#: Pads the drafted row of a round that proposed fewer drafts than the widest one.
NO_DRAFT = -1

#: Bounds what a trace can make a learner compute.
MAX_TOPK: Final = 256

#: A client chooses the label, and every trace of the request carries it.
MAX_LABEL_CHARS: Final = 128

#: What is_label asks for, for people.
LABEL_RULE: Final = f"1 to {MAX_LABEL_CHARS} letters, digits, '.', '_', '-' or '/', the first a letter or digit"

_LABEL = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._/-]{{0,{MAX_LABEL_CHARS - 1}}}")

#: What a key looks like, for people.
PROMPT_KEY_RULE: Final = "16 hexadecimal digits"

_KEY = re.compile(r"[0-9a-f]{16}")


class VerdictRule(StrEnum):
    """The rule by which the server accepts a draft token."""

    GREEDY = "greedy"
    TARGET_ONLY = "target_only"
    REJECTION = "rejection"
    BLOCK = "block"  # all drafts of a round verified together; SGLang 0.5.22 and later
    THRESHOLDS = "thresholds"  # accept thresholds below 1: tokens that the target would not have sampled pass too

    @property
    def decides_by_equality(self) -> bool:
        """True where a draft is accepted exactly when it equals the committed token.

        Only then do the committed tokens tell what another draft would have had accepted; under `rejection` they do so
        in expectation, with the target's chance of each.
        """
        return self in {VerdictRule.GREEDY, VerdictRule.TARGET_ONLY}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of a request; `edited` says that penalties, bias or a grammar changed the logits."""

    temperature: float = 0.0
    top_k: int = -1  # -1: not limited
    top_p: float = 1.0
    edited: bool = False


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How SGLang grows the tree of a round. TraceInvalid for one that it would not start with."""

    steps: int  # drafts on the longest path (--speculative-num-steps)
    topk: int  # branches that go on at every step, and their children that are looked at (--speculative-eagle-topk)
    nodes: int  # verified, the root among them (--speculative-num-draft-tokens)

    def __post_init__(self) -> None:
        drafts = self.topk + (self.steps - 1) * self.topk**2
        if self.steps < 1 or not 1 < self.topk <= MAX_TOPK or not 1 < self.nodes <= drafts + 1:
            raise TraceInvalid(f"tree: got {self}, expected steps, 2..{MAX_TOPK} branches and 2..{drafts + 1} nodes")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class VerifyRounds:
    """R verify rounds of one trace window, oldest first; all arrays have R rows."""

    starts: Int32s  # [R] index of the root in the window's tokens
    drafted: Int32s  # [R, S] proposed chain, rejected drafts included; NO_DRAFT after a shorter chain
    accepted: Int32s  # [R] drafts the server accepted, before any cut by the end of the request
    teacher_ids: Int32s  # [R, S + 1, K] best first; K is 0 when logits were not captured
    #: [R, S + 1, K] natural logarithm, over the full vocabulary; 0 where only the best token of a greedy request was
    #: captured, which carries all of the mass that verified it. -inf throughout where the teacher of a node is not
    #: known, and after the end of a shorter chain.
    teacher_logprobs: Float16s
    #: [R, S + 1, 2] natural logarithms of the chance that the target, and the draft, gave the token that was committed
    #: after node n; recorded under `rejection` alone, otherwise None. NaN where it is not known: after nodes that
    #: committed nothing, of a draft where none was asked, of a target limited by top-k or top-p.
    committed_logprobs: Float32s | None = None

    def __post_init__(self) -> None:
        axes = (self.starts.ndim, self.drafted.ndim, self.accepted.ndim, self.teacher_ids.ndim)
        _expect("rounds axes of starts, drafted, accepted, teacher_ids", axes, (1, 2, 1, 3))
        r = len(self.starts)
        _expect("rounds.drafted rows", self.drafted.shape[:1], (r,))
        _expect("rounds.accepted", self.accepted.shape, (r,))
        _expect("rounds.teacher_ids nodes", self.teacher_ids.shape[:2], (r, self.drafted.shape[1] + 1))
        _expect("rounds.teacher_logprobs", self.teacher_logprobs.shape, self.teacher_ids.shape)
        _expect_dtype("rounds", np.int32, self.starts, self.drafted, self.accepted)
        _expect_dtype("rounds", np.int32, self.teacher_ids)
        _expect_dtype("rounds.teacher_logprobs", np.float16, self.teacher_logprobs)
        if self.committed_logprobs is not None:
            _expect("rounds.committed_logprobs", self.committed_logprobs.shape, (r, self.drafted.shape[1] + 1, 2))
            _expect_dtype("rounds.committed_logprobs", np.float32, self.committed_logprobs)
        proposed = (self.drafted != NO_DRAFT).sum(axis=1)
        # Quote positions and counts only: token ids are user content, arrays may be huge, and messages reach logs.
        holes = np.any((self.drafted[:, :-1] == NO_DRAFT) & (self.drafted[:, 1:] != NO_DRAFT), axis=1)
        if np.any(holes):
            raise TraceInvalid(
                f"rounds.drafted: got a hole in round {_first(holes)}, expected {NO_DRAFT} only at its end"
            )
        wrong = (self.accepted < 0) | (self.accepted > proposed)
        if np.any(wrong):
            at = _first(wrong)
            raise TraceInvalid(f"rounds.accepted[{at}]: got {self.accepted[at]}, expected 0..{proposed[at]}")

    def __len__(self) -> int:
        return len(self.starts)


def no_tokens() -> Int32s:
    """Return no token at all, int32[0]."""
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DraftTrace:
    """One trace window with every verdict the target gave on it. Frozen; a change is a new trace.

    The constructor raises TraceInvalid when the arrays break the alignment rules of this module.
    """

    trace_id: str  # unique: a trace sent twice is stored once by it
    request_id: str
    replica: str
    tenant: str  # empty: the client named none
    target: str
    target_version: str  # which target weights judged
    draft_version: int  # which draft proposed; -1: weights that are on no board; MODEL_FREE (counters.py): no weights
    verdict_rule: VerdictRule
    sampling: Sampling
    born_at: float  # unix seconds, when the window was closed
    offset: int  # position of tokens[0] in the request; > 0 after a cached prefix or an earlier window
    tokens: Int32s  # [T]
    context_len: int
    rounds: VerifyRounds
    features: Features  # [F, D]; F is 0 when hidden states were not captured
    feature_dtype: FeatureDtype
    replay_exact: bool  # every draft state these rounds used came from these features and this draft version
    finish: str  # why the request ended; empty: it went on after this window
    is_tree: bool = False  # the server drafted trees; see the top of this module
    tree: TreeShape | None = None  # of a server that drafted trees; None too where it did not say
    label: str = ""  # domain or route that the client named; empty: none. Counted, and never a weight in training
    prompt: str = ""  # prompt_key of the whole prompt; empty: the server did not say
    prefix: Int32s = field(default_factory=no_tokens)  # [offset] or [0]; see the top of this module
    feature_scales: Float32s = field(default_factory=lambda: NO_SCALES)  # [F] of quantised rows, otherwise [0]

    def __post_init__(self) -> None:
        _expect_dtype("tokens", np.int32, self.tokens)
        if self.tokens.ndim != 1 or not 0 <= self.context_len <= len(self.tokens):
            raise TraceInvalid(f"context_len: got {self.context_len}, expected 0..{self.tokens.shape}")
        if self.offset < 0 or not self.trace_id:
            raise TraceInvalid(
                f"offset and trace_id: got {self.offset} and {self.trace_id!r}, expected >= 0 and a name"
            )
        if self.label and not is_label(self.label):
            # Not quoted: a client wrote it, and messages reach logs.
            raise TraceInvalid(f"label: got {len(self.label)} characters, expected {LABEL_RULE}")
        if self.prompt and not is_prompt_key(self.prompt):
            raise TraceInvalid(f"prompt: got {len(self.prompt)} characters, expected {PROMPT_KEY_RULE}")
        _check_prefix(self)
        _check_features(self)
        _check_rounds(self)

    @property
    def committed_len(self) -> int:
        """Number of tokens after the context."""
        return len(self.tokens) - self.context_len

    @property
    def has_whole_prefix(self) -> bool:
        """True where all tokens of the request before `tokens[0]` are known."""
        return len(self.prefix) == self.offset

    def feature_numbers(self) -> Float32s:
        """Return the feature rows as numbers, float32[F, D]; of quantised rows what their codes stand for."""
        return as_float32(self.features, self.feature_dtype, self.feature_scales)

    def visible_accepted(self) -> Int32s:
        """Return the accepted drafts per round that are part of `tokens`, int32[R]; a cut last round has fewer."""
        remaining = len(self.tokens) - 1 - self.rounds.starts
        return np.minimum(self.rounds.accepted, remaining).astype(np.int32)


def _check_prefix(trace: DraftTrace) -> None:
    _expect("prefix axes", trace.prefix.ndim, 1)
    _expect_dtype("prefix", np.int32, trace.prefix)
    if len(trace.prefix) not in {0, trace.offset}:
        raise TraceInvalid(f"prefix: got {len(trace.prefix)} tokens, expected 0 or {trace.offset} (offset)")


def _check_features(trace: DraftTrace) -> None:
    _expect("features axes", trace.features.ndim, 2)
    kind = trace.feature_dtype
    _expect_dtype("features", STORED_AS[kind], trace.features)
    _expect_dtype("feature_scales", np.float32, trace.feature_scales)
    _expect("feature_scales", trace.feature_scales.shape, (len(trace.features) if kind.is_quantised else 0,))
    if trace.replay_exact and kind.is_quantised:
        raise TraceInvalid(f"replay_exact: got true with features in {kind}, expected false: they are rounded")
    if len(trace.features) > len(trace.tokens):
        raise TraceInvalid(
            f"features: got {len(trace.features)} rows, expected at most {len(trace.tokens)} (one per token)"
        )


def _check_rounds(trace: DraftTrace) -> None:
    starts = trace.rounds.starts
    tokens = trace.tokens
    if not len(starts):
        return
    if starts[0] < max(trace.context_len - 1, 0) or starts[-1] >= len(tokens):
        raise TraceInvalid(
            f"rounds.starts: got {starts[0]}..{starts[-1]}, expected within {trace.context_len - 1}..{len(tokens) - 1}"
        )
    follows = starts[:-1] + trace.rounds.accepted[:-1] + 1
    if not np.array_equal(starts[1:], follows):
        at = _first(starts[1:] != follows)
        raise TraceInvalid(
            f"rounds.starts[{at + 1}]: got {starts[at + 1]}, expected {follows[at]} (start + accepted + 1)"
        )
    if 0 < len(trace.features) < starts[-1]:
        raise TraceInvalid(
            f"features: got {len(trace.features)} rows, expected at least {starts[-1]} (up to the last root)"
        )
    for start, drafted, visible in zip(starts, trace.rounds.drafted, trace.visible_accepted(), strict=True):
        committed = tokens[start + 1 : start + 1 + visible]
        if not np.array_equal(committed, drafted[:visible]):
            # Quote positions only: token ids are user content, and messages reach logs.
            wrong = _first(committed != drafted[:visible])
            raise TraceInvalid(f"round at {start}: got another token than accepted draft {wrong}, expected it")


def _first(mask: npt.NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))


def _expect(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise TraceInvalid(f"{what}: got {got}, expected {expected}")


def _expect_dtype(what: str, dtype: type, *arrays: npt.NDArray[Any]) -> None:
    for array in arrays:
        if array.dtype != dtype:
            raise TraceInvalid(f"{what}: got {array.dtype}, expected {np.dtype(dtype)}")


def is_label(value: object) -> bool:
    """Whether it is text of LABEL_RULE, its letters and digits ASCII."""
    return isinstance(value, str) and len(value) <= MAX_LABEL_CHARS and _LABEL.fullmatch(value) is not None


def prompt_key(token_ids: Sequence[int]) -> str:
    """Digest of a whole prompt, whatever its ids are kept in."""
    ids = np.ascontiguousarray(token_ids, "<i8")
    return hashlib.blake2b(ids.data, digest_size=8, person=b"paceline prompt").hexdigest()


def is_prompt_key(value: str) -> bool:
    """Whether it is text of PROMPT_KEY_RULE."""
    return _KEY.fullmatch(value) is not None
