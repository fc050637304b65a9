"""An open trace window of one request, and the trace it becomes when it is closed."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...buffer.errors import TraceInvalid
from ...buffer.stream.feature_rows import NO_SCALES, quantised
from ...buffer.stream.trace import (
    NO_DRAFT,
    DraftTrace,
    FeatureDtype,
    Float32s,
    Int32s,
    TreeShape,
    VerifyRounds,
    no_tokens,
)
from ..wire.request_forward import NO_FEATURES, NO_TOKENS, RequestFacts, RequestForward, RequestPrefill, RequestVerify


@dataclass(slots=True, kw_only=True)
class TraceWindow:
    """What a DraftTrace will hold, still growing."""

    request_id: str
    facts: RequestFacts
    draft_version: int
    target_version: str
    offset: int
    replay_exact: bool
    touched_at: float
    tokens: list[int] = field(default_factory=list)
    context_len: int = 0
    rounds: list[tuple[int, RequestVerify]] = field(default_factory=list)  # (index of the root in tokens, its round)
    features: list[npt.NDArray[Any]] = field(default_factory=list)
    feature_rows: int = 0
    feature_dtype: FeatureDtype = FeatureDtype.FLOAT32
    is_tree: bool = False
    tree: TreeShape | None = None
    #: The tokens before the window, where they are known and features are not captured.
    prefix: Int32s = field(default_factory=no_tokens)

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.offset + len(self.tokens)

    def has_versions_of(self, forward: RequestForward) -> bool:
        """Whether the draft and the target of `forward` are those of this window."""
        return (self.draft_version, self.target_version) == (forward.draft_version, forward.target_version)

    def take_versions_of(self, forward: RequestForward) -> None:
        """Go on with the draft and the target of `forward`; what was read with others is then no exact replay."""
        self.replay_exact &= self.has_versions_of(forward)
        self.draft_version = forward.draft_version
        self.target_version = forward.target_version

    def add_features(self, rows: npt.NDArray[Any], dtype: FeatureDtype, at: int, count: int) -> None:
        """Add the first `count` rows, the states at tokens `at` and after; nothing when they were not captured.

        Raises TraceInvalid when they do not continue the rows so far: a row must stay at its token.
        """
        if not len(rows):
            return
        if at != self.feature_rows:
            raise TraceInvalid(f"features: got rows at token {at}, expected at {self.feature_rows}")
        self.features.append(rows[:count])
        self.feature_rows += len(rows[:count])
        self.feature_dtype = dtype

    def stacked_features(self) -> npt.NDArray[Any]:
        """All feature rows so far, [F, D]."""
        return np.concatenate(self.features) if self.features else NO_FEATURES

    def tail(self, keep: int, forward: RequestForward, now: float) -> "TraceWindow":
        """A window that continues this one with `forward`, its newest `keep` tokens as context."""
        cut = max(len(self.tokens) - keep, 0)
        fresh = TraceWindow(
            request_id=self.request_id,
            facts=self.facts,
            draft_version=forward.draft_version,
            target_version=forward.target_version,
            offset=self.offset + cut,
            replay_exact=False,
            touched_at=now,
        )
        fresh.tokens = self.tokens[cut:]
        fresh.context_len = len(fresh.tokens)
        fresh.features = [self.stacked_features()[cut:]]
        fresh.feature_rows = len(fresh.features[0])
        fresh.feature_dtype = self.feature_dtype
        if not self.feature_rows and len(self.prefix) == self.offset:
            fresh.prefix = np.concatenate([self.prefix, np.asarray(self.tokens[:cut], np.int32)])
        return fresh


def begin_window(prefill: RequestPrefill, now: float) -> TraceWindow:
    """An empty window that starts with this prefill."""
    exact = prefill.start == 0 and prefill.commit.output_index <= 0
    return TraceWindow(
        request_id=prefill.request_id,
        facts=prefill.facts,
        draft_version=prefill.draft_version,
        target_version=prefill.target_version,
        offset=prefill.start,
        replay_exact=exact,
        touched_at=now,
        prefix=prefill.prefix,
    )


#: (closed window, why the request ended, unix seconds) -> its trace; TraceInvalid when the rules are broken.
TraceMaker = Callable[[TraceWindow, str, float], DraftTrace]


def trace_maker(replica: str, target: str, kind: FeatureDtype | None = None) -> TraceMaker:
    """Return the function that turns a closed window into a trace of this replica.

    `kind` is what features are quantised to; None: they stay as captured.
    """

    def make(window: TraceWindow, finish: str, now: float) -> DraftTrace:
        features = window.stacked_features()
        dtype = window.feature_dtype
        scales = NO_SCALES
        is_quantised = (kind is not None or dtype.is_quantised) and len(features) > 0
        if dtype.is_quantised and is_quantised:  # by the device
            (features, scales) = _unscaled(features)
        elif kind is not None and is_quantised:
            (features, scales) = quantised(features, dtype, kind)
            dtype = kind
        return DraftTrace(
            trace_id=uuid.uuid4().hex,
            request_id=window.request_id,
            replica=replica,
            tenant=window.facts.tenant,
            target=target,
            target_version=window.target_version,
            draft_version=window.draft_version,
            verdict_rule=window.facts.verdict_rule,
            sampling=window.facts.sampling,
            born_at=now,
            offset=window.offset,
            tokens=np.asarray(window.tokens, np.int32),
            context_len=window.context_len,
            rounds=_rounds(window.rounds),
            features=features,
            feature_dtype=dtype,
            replay_exact=window.replay_exact and len(features) > 0 and not is_quantised,
            finish=finish,
            is_tree=window.is_tree,
            tree=window.tree,
            label=window.facts.label,
            prompt=window.facts.prompt,
            prefix=NO_TOKENS if len(features) else window.prefix,
            feature_scales=scales,
        )

    return make


def _rounds(rounds: list[tuple[int, RequestVerify]]) -> VerifyRounds:
    verified = [verify for _, verify in rounds]
    width = max(len(verify.drafted) for verify in verified)
    top_k = max(verify.teacher_ids.shape[1] for verify in verified)
    drafted = np.full((len(verified), width), NO_DRAFT, np.int32)
    teacher_ids = np.zeros((len(verified), width + 1, top_k), np.int32)
    teacher_logprobs = np.full((len(verified), width + 1, top_k), -np.inf, np.float16)
    for row, verify in enumerate(verified):
        # k is 0 where no teacher was captured
        n = len(verify.drafted)
        k = verify.teacher_ids.shape[1]
        drafted[row, :n] = verify.drafted
        teacher_ids[row, : n + 1, :k] = verify.teacher_ids
        teacher_logprobs[row, : n + 1, :k] = verify.teacher_logprobs
    return VerifyRounds(
        starts=np.asarray([start for start, _ in rounds], np.int32),
        drafted=drafted,
        accepted=np.asarray([verify.accepted for verify in verified], np.int32),
        teacher_ids=teacher_ids,
        teacher_logprobs=teacher_logprobs,
        committed_logprobs=_committed_logprobs(verified, width),
    )


def _committed_logprobs(verified: list[RequestVerify], width: int) -> Float32s | None:
    """[R, width + 1, 2]; None when no round has any."""
    if all(verify.committed_logprobs is None for verify in verified):
        return None
    found = np.full((len(verified), width + 1, 2), np.nan, np.float32)
    for row, verify in enumerate(verified):
        if verify.committed_logprobs is not None:
            found[row, : len(verify.committed_logprobs)] = verify.committed_logprobs
    return found


def _unscaled(rows: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.int8], Float32s]:
    """Codes and scales of rows that a device quantised; TraceInvalid where a value had no code."""
    scales = np.ascontiguousarray(rows[:, :4]).view(np.float32)[:, 0]
    if not np.isfinite(scales).all():
        wrong = int(np.argmin(np.isfinite(scales)))
        raise TraceInvalid(
            f"features row {wrong}: got a value that is not finite, expected none for {FeatureDtype.INT8}"
        )
    return np.ascontiguousarray(rows[:, 4:]), scales
