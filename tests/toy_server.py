"""One request of a toy server, forward by forward, for tests of what the courier makes of it."""

import numpy as np
from paceline.buffer.stream.trace import NO_DRAFT, FeatureDtype, Sampling, VerdictRule
from paceline.serving.courier.assembler import WindowAssembler
from paceline.serving.courier.trace_window import trace_maker
from paceline.serving.wire.counts import CaptureCounts
from paceline.serving.wire.request_forward import Commit, RequestFacts, RequestPrefill, RequestVerify

FACTS = RequestFacts(tenant="tenant-a", sampling=Sampling(), verdict_rule=VerdictRule.GREEDY)
DIM = 4
STEPS = 3
TOP_K = 2


class ToyServer:
    """Serves one request with random drafts, in plain Python, and remembers what it committed."""

    def __init__(self, seed, prompt_len=7, cached=0):
        self.rng = np.random.default_rng(seed)
        self.prompt = self.rng.integers(0, 90, prompt_len).tolist()
        self.tokens = list(self.prompt)
        self.cached = cached
        self.served = []  # (root, drafted, accepted)
        self.facts = FACTS

    def state(self, position):
        """What the target computes at a position: a value only this token at this place has."""
        return np.full(DIM, position * 1000.0 + self.tokens[position], np.float32)

    def prefill(self, version=0, target="7", start=None, first=None, request_id="r"):
        start = self.cached if start is None else start
        read = self.tokens[start:]
        rows = np.stack([self.state(start + i) for i in range(len(read))])
        index = len(self.tokens) - len(self.prompt)
        token = int(self.rng.integers(0, 90)) if first is None else first
        self.tokens.append(token)
        return RequestPrefill(
            request_id,
            version,
            target,
            self.facts,
            start,
            np.asarray(read, np.int32),
            rows,
            FeatureDtype.FLOAT32,
            Commit(index, (token,), ""),
        )

    def verify(self, version=0, target="7", visible=None, finish="", request_id="r"):
        root = len(self.tokens) - 1
        drafted = self.rng.integers(0, 90, STEPS).tolist()
        accepted = int(self.rng.integers(0, STEPS + 1))
        new = [*drafted[:accepted], int(self.rng.integers(90, 99))]  # the correction is never a draft
        index = len(self.tokens) - len(self.prompt)
        root_token = self.tokens[-1]
        self.tokens += new
        rows = np.stack([self.state(root + i) for i in range(accepted + 1)])
        if visible is not None:
            new = new[:visible]
            del self.tokens[root + 1 + len(new) :]
        self.served.append((root, drafted, accepted))
        ids = self.rng.integers(0, 90, (STEPS + 1, TOP_K)).astype(np.int32)
        return RequestVerify(
            request_id,
            version,
            target,
            root,
            root_token,
            np.asarray(drafted, np.int32),
            accepted,
            ids,
            np.zeros((STEPS + 1, TOP_K), np.float16),
            rows,
            FeatureDtype.FLOAT32,
            Commit(index, tuple(new), finish),
        )

    def plain(self, version=0, target="7", finish="", request_id="r"):
        """A step without drafts, of which no teacher is captured."""
        root = len(self.tokens) - 1
        token = int(self.rng.integers(0, 90))
        index = len(self.tokens) - len(self.prompt)
        root_token = self.tokens[-1]
        self.tokens.append(token)
        self.served.append((root, [NO_DRAFT] * STEPS, 0))
        return RequestVerify(
            request_id,
            version,
            target,
            root,
            root_token,
            np.zeros(0, np.int32),
            0,
            np.zeros((1, 0), np.int32),
            np.zeros((1, 0), np.float16),
            self.state(root)[None],
            FeatureDtype.FLOAT32,
            Commit(index, (token,), finish),
        )


def assembler(window_tokens=1000, context_tokens=8, kind=None):
    counts = CaptureCounts()
    return WindowAssembler(trace_maker("rep", "target", kind), counts, window_tokens, context_tokens), counts


def feed(made, forwards, now=0.0):
    return [trace for forward in forwards for trace in made.add(forward, now)]
