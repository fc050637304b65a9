"""Recorded traces have the wide teacher that baselines learn from: through the product's split, and on the card."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from learner_traffic import by_rejection
from paceline.benchmarks.learning import record, runs
from paceline.benchmarks.learning.lab import Lab
from paceline.benchmarks.learning.setting import Setting
from paceline.benchmarks.learning.training.labels import labelled_batch
from paceline.buffer.trace import FeatureDtype, VerdictRule
from paceline.policies.objectives.baselines.names import Baseline
from paceline.policies.objectives.baselines.table import BENCH_OBJECTIVES
from paceline.rig.models.target import TargetModel
from paceline.rig.trace_file import read_card, write_traces
from paceline.serving.courier.split import CapturedForward
from paceline.serving.wire.messages import LOGITS, VERDICTS, VerifyHead, to_wire
from paceline.serving.wire.request_forward import Commit
from paceline.serving.wire.teacher_width import TeacherWidth
from rich.console import Console

GREEDY, REJECTION = Setting(0.0, 5), Setting(0.7, 5, rejection=True)
WIDE = TeacherWidth(sampled=record.TOP_K, greedy=record.TOP_K)
HEAD = VerifyHead(("py-0000",), 0, "0", (Commit(1, (8, 5), ""),), (True,), FeatureDtype.FLOAT32)


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path, TargetModel(tmp_path / "target", "key", {}, 1), ("py", "c"))


@pytest.fixture
def recordings(lab, monkeypatch, make_trace):
    """Makes `record` serve traces with as many teacher entries as the test says; returns how often it served."""
    served = []

    def serve_width(width):
        def served_traces(*_):
            served.append(width)
            return [make_trace(number, top_k=width, vocab=80) for number in range(3)]

        monkeypatch.setattr(record, "served_traces", served_traces)
        return served

    monkeypatch.setattr(record, "ensure_warm_head", lambda *_: lab.warm_head)
    monkeypatch.setattr(record, "held_out_prompts", lambda *_: [])
    return serve_width


def split(logits_NV, width):
    """The one greedy request of a verify round of two drafts, as the product's courier splits it."""
    verdicts = np.asarray([[7, 8, 9, 20, 2]], np.int32)
    forward = to_wire(HEAD, {VERDICTS: verdicts, LOGITS: logits_NV[None]})
    (share,) = CapturedForward(forward, width).split()
    return share.teacher_ids, share.teacher_logprobs


def test_a_wide_greedy_teacher_is_the_targets_distribution_at_every_node():
    logits_NV = np.random.default_rng(1).normal(0, 3, (3, 80)).astype(np.float32)
    ids_NK, logprobs_NK = split(logits_NV, WIDE)
    assert ids_NK.shape == (3, record.TOP_K)
    for node, logits_V in enumerate(logits_NV.astype(np.float64)):
        best_first = sorted(range(80), key=lambda token, said=logits_V: -said[token])[: record.TOP_K]
        assert ids_NK[node].tolist() == best_first
        expected = logits_V[best_first] - np.log(np.exp(logits_V).sum())
        assert logprobs_NK[node].tolist() == pytest.approx(expected.tolist(), rel=1e-3)


def test_auroras_labels_of_a_greedy_request_are_the_targets_distribution_and_not_the_committed_token(
    make_trace, make_draft
):
    trace = make_trace(1, feature_dim=48, rounds=1, steps=2, context_len=3)
    logits_NV = np.random.default_rng(2).normal(0, 1, (3, 50)).astype(np.float32)
    ids_NK, logprobs_NK = split(logits_NV, TeacherWidth(sampled=50, greedy=50))
    rounds = replace(trace.rounds, teacher_ids=ids_NK[None], teacher_logprobs=logprobs_NK[None])
    spec = BENCH_OBJECTIVES[Baseline.FORWARD_KL_ACCEPTED]
    batch = labelled_batch([replace(trace, rounds=rounds)], make_draft(1), spec)
    judged = trace.context_len + 1  # the first committed token after the root
    expected_V = torch.from_numpy(logits_NV[0].astype(np.float64)).softmax(-1)
    ids_K, probs_K = batch.teacher_ids_BTK[0, judged], batch.teacher_probs_BTK[0, judged]
    assert probs_K.tolist() == pytest.approx(expected_V[ids_K].tolist(), rel=2e-3)
    assert probs_K.max() < 0.5


def test_what_was_recorded_is_not_recorded_again_and_its_card_says_how_wide_it_is(lab, recordings):
    served = recordings(record.TOP_K)
    for _ in range(2):
        record.ensure_recorded(lab, GREEDY, 4, Console(quiet=True))
    assert read_card(lab.trace_file(GREEDY))["teacher_width"] == record.TOP_K
    assert served == [record.TOP_K]
    record.ensure_recorded(lab, GREEDY, 5, Console(quiet=True))
    assert served == [record.TOP_K] * 2


@pytest.mark.parametrize("card", [{}, {"teacher_width": 1}, {"top_k": 64}])
def test_traces_of_another_width_or_of_an_unknown_one_are_recorded_again(lab, recordings, card, make_trace):
    write_traces(lab.trace_file(GREEDY), {"per_domain": 4, **card}, [make_trace(0)])
    served = recordings(record.TOP_K)
    record.ensure_recorded(lab, GREEDY, 4, Console(quiet=True))
    assert (served, read_card(lab.trace_file(GREEDY))["traces"]) == ([record.TOP_K], 3)


def test_a_server_that_keeps_fewer_entries_is_refused_and_writes_no_file(lab, recordings):
    recordings(1)
    message = (
        r"\At0-k5: got traces with \[1\] teacher entries per node, expected 64; does the server read "
        r"PACELINE_TEST_GREEDY_TOP_K\?\Z"
    )
    with pytest.raises(SystemExit, match=message):
        record.record(lab, GREEDY, 4, Console(quiet=True))
    assert not lab.trace_file(GREEDY).exists()


@pytest.mark.parametrize(("setting", "is_given"), [(REJECTION, True), (GREEDY, False), (Setting(0.7, 5), False)])
def test_a_server_is_told_to_verify_by_rejection_sampling_where_the_setting_says_so(
    lab, monkeypatch, setting, is_given
):
    told = []
    monkeypatch.setattr(record, "cpu_server", lambda *given: told.extend(given[3]))
    record.recorded_server(lab, setting, lab.warm_head, None)
    assert (record.REJECTION_FLAG in told) is is_given
    assert told[:4] == ["--speculative-num-steps", "5", "--speculative-num-draft-tokens", "6"]


def rejection_traces(make_trace, make_draft, count=3):
    draft = make_draft(3)
    made = [make_trace(n, feature_dim=48, request_id=f"py-{n:04d}", trace_id=f"py-{n}") for n in range(count)]
    return [by_rejection(trace, draft) for trace in made]


def test_traces_of_another_rule_than_the_setting_s_or_that_replay_cannot_score_are_refused(make_trace, make_draft):
    greedy, rejected = make_trace(0), rejection_traces(make_trace, make_draft)
    record.refuse_unscored(REJECTION, rejected)
    record.refuse_unscored(GREEDY, [greedy])
    edited = replace(rejected[0], sampling=replace(rejected[0].sampling, edited=True))
    for setting, traces, why in (
        (
            REJECTION,
            [*rejected, edited],
            "not scored: {'rejection (edited logits)': 1}; expected all scored, by rejection",
        ),
        (REJECTION, [greedy], "got traces of the rules greedy"),
        (REJECTION, [*rejected, greedy], "got traces of the rules greedy, rejection"),
        (GREEDY, rejected, "got traces of the rules rejection"),
        (Setting(0.7, 5), [replace(greedy, verdict_rule=VerdictRule.BLOCK)], "not scored: {'block': 1}"),
    ):
        with pytest.raises(SystemExit, match=re.escape(why)):
            record.refuse_unscored(setting, traces)


def expected_naively(naive_draft, draft, trace, steps):
    """Accepted drafts and rounds from the first root on, over all that the coins of rejection sampling may show."""
    last = len(trace.tokens) - 1
    logp = {}
    for start, kept, known in zip(
        trace.rounds.starts.tolist(), trace.rounds.accepted.tolist(), trace.rounds.committed_logprobs, strict=True
    ):
        logp |= {start + 1 + node: float(known[node, 0]) for node in range(kept + 1)}

    @cache
    def chance(root, depth):
        _, logits = naive_draft(draft, trace.tokens, trace.features, root, depth + 1, fed=trace.tokens[root + 1 :])
        scaled = logits[depth] / trace.sampling.temperature
        token = root + 1 + depth
        logq = scaled[trace.tokens[token]] - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum())
        return min(1.0, float(np.exp(logq - logp[token])))

    @cache
    def served(root):
        if root >= last:
            return 0.0, 0.0
        accepted, rounds, survives = 0.0, 1.0, 1.0
        for kept in range(min(steps, last - root) + 1):
            goes_on = chance(root, kept) if kept < min(steps, last - root) else 0.0
            ends, survives = survives * (1.0 - goes_on), survives * goes_on
            later = served(root + kept + 1) if ends else (0.0, 0.0)
            accepted, rounds = accepted + ends * (kept + later[0]), rounds + ends * later[1]
        return accepted, rounds

    return served(int(trace.rounds.starts[0]))


def test_a_stream_by_rejection_sampling_is_measured_by_the_expectation_of_any_draft(
    make_trace, make_draft, naive_draft
):
    served = [replace(trace, request_id=f"{domain}-0000") for trace, domain in zip(
        rejection_traces(make_trace, make_draft), ("py", "c", "py"), strict=True
    )]  # fmt: skip
    other = make_draft(5)
    found = runs.tallies(other, served, 3)
    for domain, traces in (("py", [served[0], served[2]]), ("c", [served[1]])):
        sums = np.sum([expected_naively(naive_draft, other, trace, 3) for trace in traces], axis=0)
        assert (found[domain].accepted, found[domain].rounds) == pytest.approx(tuple(sums), rel=1e-4)
