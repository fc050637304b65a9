"""The learning bench records traffic that the real server verifies by rejection sampling."""

import math

import pytest
from paceline.benchmarks.learning import record
from paceline.benchmarks.learning.lab import Lab
from paceline.benchmarks.learning.programme import Setting
from paceline.benchmarks.learning.runs import tallies
from paceline.buffer.stream.trace import VerdictRule
from paceline.learner.judging.replay import replay_logprobs
from paceline.learner.model.draft_io import load_draft, load_target_embedding
from paceline.policies.rejection import EstimatedRounds, served_beside_expected
from paceline.rig.models.target import TargetModel
from paceline.rig.trace_file import read_card, read_traces
from rich.console import Console

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

SETTING = Setting(0.7, 3, rejection=True)


def test_recorded_rejection_traffic_can_be_scored_for_any_draft(models, tmp_path):
    lab = Lab(data_dir=tmp_path, target=TargetModel(models[0], "e2e", {}, 0), domains=("py", "prose"))
    record.ensure_recorded(lab, SETTING, 12, Console(quiet=True))
    files = [lab.trace_file(SETTING, domain) for domain in lab.domains]
    cards = [read_card(file) for file in files]
    assert [(card["setting"], card["domain"], card["traces"]) for card in cards] == [
        ("t0.7-rejection-k3", "py", 12), ("t0.7-rejection-k3", "prose", 12)
    ]  # fmt: skip
    traces = [trace for file in files for trace in read_traces(file)]
    assert {trace.verdict_rule for trace in traces} == {VerdictRule.REJECTION}
    draft = load_draft(lab.random_head(record.SEED), load_target_embedding(models[0]))
    pairs = zip(traces, replay_logprobs(draft, traces, SETTING.steps), strict=True)
    served = sum((served_beside_expected(trace, logq_TS) for trace, logq_TS in pairs), EstimatedRounds())
    # The draft that served: the coins alone may differ, and five deviations of them are one chance in two millions.
    assert abs(served.accepted - served.expected) < 5 * math.sqrt(served.variance)
    found = tallies(draft, traces, SETTING.steps)
    assert {request.partition("-")[0] for request in found} == {"py", "prose"}
    assert sum(tally.accepted for tally in found.values()) > 0.0
