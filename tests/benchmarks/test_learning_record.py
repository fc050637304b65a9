"""What the learning bench records: once, by the rule that its setting names, and nothing replay cannot score."""

import re
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from unittest.mock import MagicMock

import numpy as np
import pytest
from learner_traffic import by_rejection
from paceline.benchmarks.learning import record, runs
from paceline.benchmarks.learning.lab import Lab
from paceline.benchmarks.learning.programme import Setting
from paceline.buffer.stream.trace import VerdictRule
from paceline.policies.acceptance import Tally
from paceline.rig.models.target import TargetModel
from paceline.rig.trace_file import read_card
from rich.console import Console

GREEDY, REJECTION = Setting(0.0, 5), Setting(0.7, 5, rejection=True)


@pytest.fixture
def lab(tmp_path):
    return Lab(data_dir=tmp_path, target=TargetModel(tmp_path / "target", "key", {}, 1), domains=("py", "c"))


def test_what_was_recorded_is_recorded_again_only_where_more_is_wanted(lab, monkeypatch, make_trace):
    served = []

    def served_traces(lab, server, setting, *, prompts, report):
        served.extend(prompts)
        return [make_trace(number) for number in range(3)]

    @contextmanager
    def running(local, server, drafts):
        yield MagicMock()

    monkeypatch.setattr(record, "served_traces", served_traces)
    monkeypatch.setattr(record, "running", running)
    monkeypatch.setattr(record, "recorded_server", lambda *_: None)
    monkeypatch.setattr(Lab, "random_head", lambda lab, _seed: lab.folder)
    monkeypatch.setattr(Lab, "prompts", lambda _lab, domain, count: [f"{count} of {domain}"])
    first = ["4 of py", "4 of c"]
    for per_domain, told in ((4, first), (4, first), (5, [*first, "5 of py", "5 of c"])):
        record.ensure_recorded(lab, GREEDY, per_domain, Console(quiet=True))
        assert served == told
    lab.trace_file(GREEDY, "c").unlink()  # an interrupted run: the first domain is whole, and is left
    record.ensure_recorded(lab, GREEDY, 5, Console(quiet=True))
    assert served[4:] == ["5 of c"]
    assert read_card(lab.trace_file(GREEDY, "c"))["traces"] == 3


@pytest.mark.parametrize(("setting", "is_given"), [(REJECTION, True), (GREEDY, False), (Setting(0.7, 5), False)])
def test_a_server_is_told_to_verify_by_rejection_sampling_where_the_setting_says_so(
    lab, monkeypatch, setting, is_given
):
    told = []
    monkeypatch.setattr(record, "cpu_server", lambda *_, flags, env: told.extend(flags))
    record.recorded_server(lab, setting, lab.folder, None)
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
    served = rejection_traces(make_trace, make_draft)
    other = make_draft(5)
    found = runs.tallies(other, served, 3)
    assert list(found) == [trace.request_id for trace in served]
    for trace in served:
        sums = expected_naively(naive_draft, other, trace, 3)
        assert (found[trace.request_id].accepted, found[trace.request_id].rounds) == pytest.approx(sums, rel=1e-4)


def test_a_point_counts_a_domain_s_requests_together():
    point = runs.Point(3, {"py-0000": Tally(1, 2), "c-0001": Tally(3, 3), "py-0002": Tally(2, 4)}, 0, 0.0)
    assert point.by_domain == {"py": Tally(3, 6), "c": Tally(3, 3)}
    assert point.accepted == pytest.approx(6 / 9)
