"""Rounds of one request with any number of drafts, none among them, become one exact trace: capture to codec."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from paceline.buffer.stream.trace import NO_DRAFT, FeatureDtype, Sampling, VerdictRule
from paceline.buffer.stream.trace_codec import decode_trace, encode_trace
from paceline.learner.training.batch import teacher_nodes
from paceline.policies.acceptance import identity, served_tally
from paceline.policies.canary import CanaryRules
from paceline.policies.guard import GuardLimits
from paceline.serving.breaker import Breaker
from paceline.serving.capture import sglang_capture
from paceline.serving.capture.prefill_rows import WindowSizes
from paceline.serving.capture.request_choice import RequestChoice
from paceline.serving.capture.sglang_capture import CaptureSettings, SglangCapture
from paceline.serving.courier.assembler import WindowAssembler
from paceline.serving.courier.split import split
from paceline.serving.courier.trace_window import trace_maker
from paceline.serving.watch.draft_monitor import DraftMonitor
from paceline.serving.wire.counts import CaptureCounts
from paceline.serving.wire.request_forward import (
    NO_FEATURES,
    Commit,
    RequestFacts,
    RequestPrefill,
    RequestVerify,
    TeacherWidth,
)
from said import said_by
from sglang_double import batch_of, request
from twins.memory_board import MemoryVersionBoard

VOCAB, DIM, PROMPT = 50, 4, [3, 1, 4]
FACTS = RequestFacts(tenant="", sampling=Sampling(), verdict_rule=VerdictRule.GREEDY)


class ToyEngine:
    """Two greedy requests in one batch, each with its own text; a round takes k drafts of which some are right."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.texts = {name: self.rng.integers(0, VOCAB, 200).tolist() for name in "ab"}
        self.at = dict.fromkeys("ab", len(PROMPT))  # position of the root
        self.served = {name: [] for name in "ab"}  # (root, drafted, accepted)
        self.breaker = Breaker()
        settings = CaptureSettings(TeacherWidth(2, 1), features=True, sizes=WindowSizes(2048, 512))
        self.capture = SglangCapture(
            settings, None, RequestChoice(1.0, CaptureCounts(), lambda: 7, lambda: "1"), self.breaker
        )

    def state(self, name, position):
        return [position * 100.0 + self.texts[name][position]] * DIM

    def prefill(self, name):
        ids = np.asarray(self.texts[name][: len(PROMPT)], np.int32)
        rows = np.asarray([self.state(name, i) for i in range(len(PROMPT))], np.float32)
        first = Commit(0, (self.texts[name][len(PROMPT)],), "")
        return RequestPrefill(name, 7, "1", FACTS, 0, ids, rows, FeatureDtype.FLOAT32, first)

    def verify(self, k):
        """What SGLang passes to the hook after a chain of `k` drafts, and what it commits."""
        nodes, lens, index, logits, hidden, commits = [], [], [], [], [], []
        for row, (name, text) in enumerate(self.texts.items()):
            root = self.at[name]
            right = int(self.rng.integers(0, k + 1))
            drafts = [
                *text[root + 1 : root + 1 + right],
                *((t + 1) % VOCAB for t in text[root + 1 + right : root + 1 + k]),
            ]
            nodes += [text[root], *drafts]
            lens.append(right + 1)
            index.append([row * (k + 1) + j if j <= right else -1 for j in range(k + 1)])
            best = [text[root + 1 + j] if j <= right else int(self.rng.integers(0, VOCAB)) for j in range(k + 1)]
            logits += [[float(v == b) for v in range(VOCAB)] for b in best]
            hidden += [self.state(name, root + j) for j in range(k + 1)]
            commits.append((name, root, drafts, right))
        out = SimpleNamespace(
            next_token_logits=torch.tensor(logits), hidden_states=torch.tensor(hidden), auxiliary_device_output=None
        )
        roots = torch.tensor([self.at[name] for name in self.texts])
        chain = {"draft_token_num": k + 1, "tree_topk": 1, "draft_probs": None}
        verify_input = SimpleNamespace(draft_token=torch.tensor(nodes), **chain)
        self.capture._after_verify(
            (None, torch.tensor(lens), torch.tensor(index)), verify_input, self.batch(roots), out
        )
        return [self.commit(*one) for one in commits]

    def batch(self, roots):
        return batch_of([request(name) for name in self.texts], seq_lens=roots)

    def commit(self, name, root, drafts, right):
        self.served[name].append((root, drafts, right))
        self.at[name] = root + right + 1
        visible = tuple(self.texts[name][root + 1 : root + right + 2])
        return Commit(root - len(PROMPT) + 1, visible, "length" if self.at[name] > 100 else "")


def traces_of(engine, lengths, monkeypatch):
    """Serve until both requests have ended, `lengths` in turn; every forward takes the product's path."""
    attached = []
    monkeypatch.setattr(sglang_capture, "attach", lambda _, forward: attached.append(forward))
    made = WindowAssembler(trace_maker("rep", "target"), CaptureCounts(), 1000, 8)
    found = [trace for name in "ab" for trace in made.add(engine.prefill(name), 0.0)]
    for turn in range(250):
        commits = tuple(engine.verify(lengths[turn % len(lengths)]))
        captured = attached.pop().copy_to_host(torch.clone).to_wire(commits)
        for forward in split(captured, TeacherWidth(2, 1)):
            found += made.add(forward, 0.0)
        if len(found) == 2:
            return {trace.request_id: trace for trace in found}
    raise AssertionError(f"got {len(found)} traces, breaker: {engine.breaker.reason}")


@pytest.mark.parametrize("lengths", [(0,), (0, 3), (5, 0, 0, 1, 2), (2, 1, 0), (1,)])
def test_a_trace_holds_each_round_with_as_many_drafts_as_it_had(lengths, monkeypatch):
    engine = ToyEngine(len(lengths))
    for name, trace in traces_of(engine, lengths, monkeypatch).items():
        served = [one for one in engine.served[name] if one[0] <= 100]
        assert trace.tokens.tolist() == engine.texts[name][: len(trace.tokens)]
        assert trace.rounds.starts.tolist() == [root for root, _, _ in served]
        assert trace.rounds.accepted.tolist() == [right for *_, right in served]
        assert [row[row != NO_DRAFT].tolist() for row in trace.rounds.drafted] == [drafts for _, drafts, _ in served]
        assert trace.rounds.drafted.shape[1] == max(lengths)
        assert trace.features.tolist() == [engine.state(name, i) for i in range(len(trace.features))]
        for row, (root, _, right) in enumerate(served):
            best = trace.rounds.teacher_ids[row, : right + 1, 0].tolist()
            assert best == engine.texts[name][root + 1 : root + right + 2]


@pytest.mark.parametrize("lengths", [(0,), (4, 0, 1)])
def test_the_wire_and_the_learner_take_such_a_trace(lengths, monkeypatch):
    engine = ToyEngine(9)
    for name, trace in traces_of(engine, lengths, monkeypatch).items():
        arrived = decode_trace(encode_trace(trace))
        assert np.array_equal(arrived.rounds.drafted, trace.rounds.drafted)
        assert np.array_equal(arrived.rounds.teacher_ids, trace.rounds.teacher_ids)
        # Every committed token after the first root was judged by one node, and replay caps at what was proposed.
        judged = teacher_nodes(trace)[int(trace.rounds.starts[0]) + 1 :]
        assert (judged >= 0).all()
        runs = np.array([min(9, len(trace.tokens) - 1 - i) for i in range(len(trace.tokens))], np.int32)
        for root, drafts, right in engine.served[name]:
            if right < len(drafts) and root < len(runs):
                runs[root] = right
        drafted = sum(len(drafts) > 0 for _, drafts, _ in engine.served[name])
        assert identity(trace, runs) == (drafted, drafted)
        assert served_tally(trace).rounds == drafted


def test_rounds_of_plain_decoding_do_not_count_for_the_draft():
    monitor = DraftMonitor(MemoryVersionBoard(), "rep", CanaryRules(), GuardLimits(min_rounds=10))
    ids = np.zeros((1, 0), np.int32)
    for number in range(400):
        drafted = np.zeros(number % 2, np.int32)
        commit = Commit(number, (5,) * (len(drafted) + 1), "length" if number == 399 else "")
        monitor.add(
            RequestVerify(
                "r",
                0,
                "1",
                3,
                7,
                drafted,
                len(drafted),
                ids,
                ids.astype(np.float16),
                NO_FEATURES,
                FeatureDtype.FLOAT32,
                commit,
            )
        )
    (ended,) = said_by(monitor).stretches.ended
    assert (ended.accepted, ended.rounds) == (200, 200)
