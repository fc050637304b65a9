"""SGLang's adaptive policy by paceline: what it answers, what it observes, and that no fault leaves it."""

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from paceline.buffer.board.member_status import PacingSaid
from paceline.buffer.errors import ConfigError
from paceline.buffer.settings.kinds import PacingName
from paceline.policies.pacing.goodput import GoodputPacing
from paceline.policies.pacing.policy import SweepPacing
from paceline.policies.pacing.step_costs import CostTable
from paceline.serving import sglang_ranks
from paceline.serving.pacing.adaptive_policy import PacelineAdaptivePolicy
from paceline.serving.pacing.costs_file import read_costs, table_of
from paceline.serving.pacing.sglang_pacing import SglangPacing

LENGTHS = (0, 1, 3, 5)


class Scripted:
    """Answers with what it was given, and records what it observes; raises when given an error."""

    def __init__(self, answers):
        self.answers, self.observed, self.changes = list(answers), [], 0

    def steps(self, batch_size):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def observe(self, batch_size, steps, accepted, cost_ms):
        self.observed.append((batch_size, steps, list(accepted), cost_ms))

    def draft_changed(self):
        self.changes += 1


def ticking(step_s=0.002):
    """A clock that advances by `step_s` with every call."""
    now_s = iter(range(10**6))
    return lambda: next(now_s) * step_s


def test_a_decode_step_is_chosen_and_observed_with_its_cost():
    policy = Scripted([3, 3, 0])
    adaptive = PacelineAdaptivePolicy(policy, LENGTHS, 3, clock=ticking())
    for accepted in ([2, 0], [3, 3], [0, 0]):
        steps = adaptive.get_steps_for_batch(2)
        assert adaptive.on_verify_complete([min(a, steps) for a in accepted], 2) is None
    assert policy.observed == [
        (2, 3, [2, 0], None),
        (2, 3, [3, 3], pytest.approx(2.0)),
        (2, 0, [0, 0], pytest.approx(2.0)),
    ]
    status = adaptive.said()
    assert status.steps == {"2": {"0": 1, "3": 2}}
    assert status.cost_ms == {"2": {"0": pytest.approx(2.0), "3": pytest.approx(2.0)}}
    assert (status.faults, status.reason, status.unmatched) == (0, "", 0)


@pytest.mark.parametrize(("wanted", "offered"), [(0, 0), (1, 1), (2, 1), (4, 3), (9, 5), (-1, 0)])
def test_a_length_that_is_not_offered_becomes_the_next_shorter_one(wanted, offered):
    assert PacelineAdaptivePolicy(Scripted([wanted]), LENGTHS, 3).get_steps_for_batch(1) == offered


def test_graphs_are_captured_for_every_length_at_every_batch_size():
    adaptive = PacelineAdaptivePolicy(Scripted([]), LENGTHS, 3)
    assert adaptive.candidate_steps == [0, 1, 3, 5]
    adaptive.set_cuda_graph_bs([8, 1, 4])
    assert [adaptive.cuda_graph_bs_for_step(k) for k in LENGTHS] == [[1, 4, 8]] * 4
    adaptive.cuda_graph_bs_for_step(0).clear()
    assert adaptive.cuda_graph_bs_for_step(0) == [1, 4, 8]  # what SGLang does with its list changes no other
    adaptive.set_cuda_graph_bs(None)
    assert adaptive.cuda_graph_bs_for_step(0) is None


def test_a_fault_ends_pacing_for_good_and_is_logged_once(caplog):
    policy = Scripted([5, ValueError("odd"), 5, 5])
    adaptive = PacelineAdaptivePolicy(policy, LENGTHS, 3)
    chosen = []
    for _ in range(4):
        chosen.append(adaptive.get_steps_for_batch(1))
        adaptive.on_verify_complete([0], 1)
    assert chosen == [5, 3, 3, 3]
    assert (adaptive.faults, adaptive.reason) == (1, "ValueError: odd")
    assert caplog.text.count("pacing has ended, 3 steps from now on") == 1
    assert len(policy.observed) == 1


@pytest.mark.parametrize("act", ["observe", "draft_changed"])
def test_a_fault_while_observing_leaves_the_scheduler_alone_too(act, monkeypatch):
    policy = Scripted([1, 1])

    def fail(*_):
        raise RuntimeError("odd")

    monkeypatch.setattr(policy, act, fail)
    adaptive = PacelineAdaptivePolicy(policy, LENGTHS, 3)
    adaptive.get_steps_for_batch(1)
    adaptive.on_verify_complete([0], 1)
    adaptive.draft_changed()
    assert adaptive.get_steps_for_batch(1) == 3
    assert adaptive.reason == "RuntimeError: odd"


def test_costs_of_a_table_replace_the_ranks_own_clock():
    policy = Scripted([1, 3])
    adaptive = PacelineAdaptivePolicy(
        policy, LENGTHS, 3, CostTable({1: {0: 10.0, 2: 14.0}, 3: {0: 20.0, 2: 28.0}}), clock=ticking()
    )
    for _ in range(2):
        adaptive.get_steps_for_batch(2)
        adaptive.on_verify_complete([0, 1], 2)
    assert [cost_ms for *_, cost_ms in policy.observed] == [pytest.approx(18.0), pytest.approx(24.0)]


def test_a_sweep_takes_every_length_in_turn():
    policy = SweepPacing((0, 2), run=2)
    chosen = []
    for _ in range(6):
        chosen.append(policy.steps(4))
        policy.observe(4, chosen[-1], [0], None)
    assert chosen == [0, 0, 2, 2, 0, 0]


def load_table(file):
    return table_of(read_costs(file), file)


def test_a_sweep_reads_no_file_since_it_makes_it(tmp_path):
    pacing = SglangPacing(PacingName.SWEEP, str(tmp_path / "not-made-yet.json"), lambda: 1)
    assert pacing.before_controller(None, WORKER, OWN)


def test_a_table_is_read_from_its_file(tmp_path):
    assert load_table("") is None
    (tmp_path / "costs.json").write_text('{"name": "x", "cost_ms": {"1": [10, 12], "4": [16, 24]}}')
    table = load_table(str(tmp_path / "costs.json"))
    assert [table.cost_ms(b, k) for b, k in ((1, 0), (1, 1), (4, 1), (2, 0), (1, 3))] == [10, 12, 24, 12, 16]


def test_what_a_sweeping_replica_reports_can_be_read_as_a_table(tmp_path):
    adaptive = PacelineAdaptivePolicy(
        SweepPacing(LENGTHS, run=2), LENGTHS, 3, reports_per_batch_size=True, clock=ticking()
    )
    for _ in range(16):
        steps = adaptive.get_steps_for_batch(7)
        adaptive.on_verify_complete([0] * 7, 7)
    assert steps == 5
    (tmp_path / "costs.json").write_bytes(msgspec.json.encode(adaptive.said()))
    table = load_table(str(tmp_path / "costs.json"))
    assert [table.cost_ms(7, k) for k in LENGTHS] == [pytest.approx(2.0)] * 4


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"cost_ms": {"1": []}}', '{"cost_ms": {}}', '{"cost_ms": {"1": [0.0]}}', '{"cost_ms": {"a": [1]}}'],
)
def test_a_file_that_is_not_a_table_is_named(tmp_path, text):
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(ConfigError, match="PACELINE_PACING_COSTS: got "):
        load_table(str(tmp_path / "costs.json"))
    with pytest.raises(ConfigError, match="No such file"):
        load_table(str(tmp_path / "absent.json"))


WORKER = SimpleNamespace(speculative_num_steps=3)


OWN = SimpleNamespace(candidate_steps=[5, 0, 3])


def test_sglangs_policy_is_replaced_and_its_lengths_are_kept():
    pacing = SglangPacing(PacingName.SWEEP, "", lambda: 1)
    assert pacing.said() == PacingSaid(policy="off", reason="the server runs without --speculative-adaptive")
    (controller, _, adaptive), options = pacing.before_controller("controller", WORKER, OWN)
    assert (controller, options, adaptive.candidate_steps) == ("controller", {}, [0, 3, 5])
    assert adaptive.get_steps_for_batch(1) == 0
    assert pacing.said().policy == "sweep"


@pytest.mark.parametrize(("name", "is_paced"), [("goodput", False), ("sweep", True)])
def test_several_ranks_need_a_table_where_costs_decide(name, is_paced, caplog, tmp_path, monkeypatch):
    monkeypatch.setattr(sglang_ranks, "is_same_on_all", lambda _: True)
    pacing = SglangPacing(PacingName(name), "", lambda: 2)
    assert (pacing.before_controller(None, WORKER, OWN) is not None) == is_paced
    assert ("with --tp-size 2: got no PACELINE_PACING_COSTS" in caplog.text) == (not is_paced)
    (tmp_path / "costs.json").write_text('{"cost_ms": {"1": [10, 12]}}')
    with_table = SglangPacing(PacingName(name), str(tmp_path / "costs.json"), lambda: 2)
    assert with_table.before_controller(None, WORKER, OWN)


def test_ranks_of_different_choices_all_keep_sglangs_own_rule(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).write_text(json.dumps({"cost_ms": {"1": [10, 12 if name == "a" else 13]}}))
    seen = []
    monkeypatch.setattr(sglang_ranks, "is_same_on_all", seen.append)
    ranks = [SglangPacing(PacingName.GOODPUT, str(tmp_path / name), lambda: 2) for name in ("a", "b", "a", "gone")]
    assert [rank.before_controller(None, WORKER, OWN) for rank in ranks] == [None] * 4
    assert seen[0] == seen[2]
    assert len(set(seen)) == 3
    assert "another rank cannot pace" in ranks[0].said().reason
    assert "No such file" in ranks[3].said().reason


@pytest.mark.parametrize("content", [b'{"cost_ms": {"1": [10, 12]}}', b"no table", None])
def test_a_rank_reads_its_cost_file_once_and_takes_part_in_the_vote_whatever_becomes_of_it(
    tmp_path, monkeypatch, content
):
    file, votes, opened = tmp_path / "costs.json", [], []
    if content is not None:
        file.write_bytes(content)

    def open_and_take_away(path, *arguments, **named):
        handle = Path.open.original(path, *arguments, **named)
        opened.append(path)
        path.unlink()
        return handle

    open_and_take_away.original = Path.open
    monkeypatch.setattr(Path, "open", open_and_take_away)
    monkeypatch.setattr(sglang_ranks, "is_same_on_all", lambda vote: votes.append(vote) or True)
    pacing = SglangPacing(PacingName.GOODPUT, str(file), lambda: 2)
    is_paced = pacing.before_controller(None, WORKER, OWN) is not None
    assert is_paced == bool(content and content.startswith(b"{"))
    assert (len(votes), len(opened)) == (1, int(content is not None))


def test_no_fault_of_pacing_reaches_sglang(monkeypatch):
    def fail(*_):
        raise RuntimeError("odd")

    monkeypatch.setattr(sglang_ranks, "is_same_on_all", fail)
    apart = SglangPacing(PacingName.SWEEP, "", lambda: 2)
    assert apart.before_controller(None, WORKER, OWN) is None
    assert apart.said() == PacingSaid(policy="off", reason="RuntimeError: odd")
    pacing = SglangPacing(PacingName.SWEEP, "", lambda: 1)
    adaptive = pacing.before_controller(None, WORKER, OWN)[0][2]
    pacing.before_forward(None, SimpleNamespace())  # a batch of another release, without its forward mode
    assert adaptive.reason.startswith("AttributeError")
    assert adaptive.get_steps_for_batch(1) == 3
    adaptive.on_verify_complete([1], 1)
    for broken in ("launch", "verify", "interrupt"):
        adaptive = PacelineAdaptivePolicy(Scripted([2]), LENGTHS, 3)
        monkeypatch.setattr(adaptive._meter, broken, fail)
        adaptive.get_steps_for_batch(1)
        adaptive.on_verify_complete([1], 1)
        adaptive.draft_changed()
        assert adaptive.reason == "RuntimeError: odd", broken


def test_two_ranks_with_clocks_of_their_own_choose_alike_by_one_table(tmp_path):
    (tmp_path / "costs.json").write_text('{"cost_ms": {"1": [10, 10.5, 11, 11.5, 12, 12.5]}}')
    chosen = []
    for step_s in (0.001, 0.5):
        table = load_table(str(tmp_path / "costs.json"))
        adaptive = PacelineAdaptivePolicy(GoodputPacing(LENGTHS, table), LENGTHS, 3, table, clock=ticking(step_s))
        chosen.append([])
        for turn in range(300):
            chosen[-1].append(adaptive.get_steps_for_batch(1))
            adaptive.on_verify_complete([min(turn % 7, chosen[-1][-1])], 1)
            if turn == 150:
                adaptive.draft_changed()
    assert chosen[0] == chosen[1]
    assert max(chosen[0]) == 5


def test_a_prefill_interrupts_and_a_swap_is_passed_on(monkeypatch):
    pacing = SglangPacing(PacingName.SWEEP, "", lambda: 1)
    prefill = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: True))
    pacing.before_forward(None, prefill)
    pacing.draft_changed()
    adaptive = pacing.before_controller(None, WORKER, OWN)[0][2]
    policy = Scripted([3, 3])
    monkeypatch.setattr(adaptive, "_policy", policy)
    for _ in range(2):
        pacing.before_forward(None, prefill)
        adaptive.get_steps_for_batch(1)
        adaptive.on_verify_complete([1], 1)
    pacing.draft_changed()
    assert [cost_ms for *_, cost_ms in policy.observed] == [None, None]
    assert policy.changes == 1
