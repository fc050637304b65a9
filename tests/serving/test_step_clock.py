"""The step clock against a scheduler whose every second is written down: SGLang's two loops, acted by a double."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.buffer.board.counters import OTHER_BATCHES, OTHER_STEPS, STEP_MS_EDGES
from paceline.serving.clock import step_clock
from paceline.serving.clock.busy_time import BusyTime
from paceline.serving.clock.shared_meter import SharedMeter
from paceline.serving.clock.step_cells import MAX_CELLS, StepCells, bucket_of
from paceline.serving.clock.step_clock import StepClock
from paceline.serving.pacing.adaptive_policy import PacelineAdaptivePolicy
from sglang_double import request

EXTEND = SimpleNamespace(is_extend=lambda: True)
DECODE = SimpleNamespace(is_extend=lambda: False)


@dataclass(eq=False)
class Req:
    """What hook bodies read of a request of SGLang's; it ends at `budget` output tokens."""

    budget: int
    output_ids: list = field(default_factory=list)
    finished_reason: object = None
    finished_len: int | None = None
    finished_output: object = None
    is_retracted: bool = False
    spec_verify_ct: int = 0
    spec_num_correct_drafts: int = 0
    sampling_params: object = field(default_factory=lambda: request("r").sampling_params)

    def take(self, tokens):
        self.output_ids.extend([7] * tokens)
        if len(self.output_ids) >= self.budget:
            self.finished_reason, self.finished_len = "length", self.budget


class Engine:
    """SGLang's scheduler in one thread: launches, results and streaming, with the clock's hooks around them."""

    def __init__(self, steps=3, policy=None):
        self.now_s, self.steps, self.policy = 50.0, steps, policy
        self.clock = StepClock(lambda: self.now_s)
        self.clock.start()
        self.spent = Counter()  # the oracle

    def pass_s(self, seconds, kind):
        self.now_s += seconds
        self.spent[kind] += seconds

    def launch_prefill(self, reqs):
        self.clock.before_forward(None, SimpleNamespace(forward_mode=EXTEND))

    def prefilled(self, reqs):
        for req in reqs:
            req.take(1)
        self.stream(reqs)
        self.clock.after_prefill(None, None, SimpleNamespace(reqs=reqs), None)

    def launch_decode(self, reqs):
        self.clock.before_forward(None, SimpleNamespace(forward_mode=DECODE))
        if self.policy is not None:
            self.steps = self.policy.get_steps_for_batch(len(reqs))
        self.clock.after_activate(None, SimpleNamespace(speculative_num_steps=self.steps), len(reqs))

    def decoded(self, reqs, accepted):
        self.clock.before_resolve(None, None, SimpleNamespace(reqs=reqs))
        if self.policy is not None:
            self.policy.on_verify_complete(accepted, len(reqs))
        for req, drafts in zip(reqs, accepted, strict=True):
            if req.finished_reason is None and not req.is_retracted:
                req.spec_verify_ct += 1
                req.spec_num_correct_drafts += drafts
                req.take(drafts + 1)
        self.stream(reqs)

    def stream(self, reqs, skip_req=None):
        self.clock.before_stream(None, reqs, False, skip_req)
        for req in reqs:
            if req.finished_reason is not None and req is not skip_req:
                req.finished_output = True

    def counters(self):
        return self.clock.counters()


def assert_time_is(engine):
    """Every second is where the engine spent it."""
    found = engine.counters().seconds
    assert {kind: pytest.approx(found.get(kind, 0.0), abs=2e-3) for kind in engine.spent} == dict(engine.spent)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(0, 3), st.booleans()), max_size=12))
@settings(deadline=None, max_examples=60)
def test_steps_tokens_and_seconds_of_a_normal_loop(waves):
    """Waves of requests, one forward at a time, now and then a wait between two waves."""
    engine, served, cells, everyone = Engine(), 0, Counter(), []
    for size, budget, accepts, waits in waves:
        if waits:
            engine.pass_s(0.5, "idle")
        reqs = [Req(budget + i) for i in range(size)]
        reqs[0].sampling_params.min_new_tokens = 1
        everyone += reqs
        engine.launch_prefill(reqs)
        engine.pass_s(0.03, "prefill")
        engine.prefilled(reqs)
        while running := [req for req in reqs if req.finished_reason is None]:
            engine.pass_s(0.001, "decode")  # what the scheduler does between two forwards
            engine.launch_decode(running)
            engine.pass_s(0.009, "decode")
            engine.decoded(running, [accepts] * len(running))
            cells[1 << (len(running) - 1).bit_length()] += 1
        served += sum(req.budget for req in reqs)
    found = engine.counters()
    assert {cell.bucket: cell.steps for cell in found.steps} == dict(cells)
    assert sum(cell.tokens for cell in found.steps) == served - len(everyone)  # the first token is the prefill's
    assert sum(cell.requests for cell in found.steps) == sum(req.spec_verify_ct for req in everyone)
    assert (found.requests_ended, found.requests_counted) == (len(everyone), len(waves))
    assert found.rounds == sum(req.spec_verify_ct for req in everyone)
    assert found.accepted == sum(req.spec_num_correct_drafts for req in everyone)
    at_16 = [[0] * bisect_left(STEP_MS_EDGES, 10.0) + [cell.steps] for cell in found.steps]
    assert [cell.durations[: len(row)] for cell, row in zip(found.steps, at_16, strict=True)] == at_16
    assert_time_is(engine)


def test_with_overlap_a_step_takes_what_passed_between_two_results_and_the_last_one_commits_nothing():
    engine, reqs = Engine(), [Req(9), Req(9)]
    engine.launch_prefill(reqs)
    engine.pass_s(0.02, "prefill")
    engine.launch_decode(reqs)
    engine.pass_s(0.01, "prefill")
    engine.prefilled(reqs)
    for _ in range(2):  # the next one is launched before this one is read
        engine.launch_decode(reqs)
        engine.pass_s(0.012, "decode")
        engine.decoded(reqs, [3, 1])
    engine.launch_decode([reqs[1]])
    engine.pass_s(0.012, "decode")
    engine.decoded(reqs, [0, 1])  # the first has ended: its row is computed and commits nothing
    assert reqs[0].finished_output
    engine.pass_s(0.008, "decode")
    engine.decoded([reqs[1]], [2])
    engine.pass_s(3.0, "idle")
    assert_time_is(engine)
    found = engine.counters()
    sums = {(c.bucket, c.draft_steps): (c.steps, c.tokens, c.requests, c.seconds) for c in found.steps}
    # 9 tokens each, of which the prefill has one; the last round committed one more than the request may have.
    assert sums == {(2, 3): (3, 8 + 6, 5, pytest.approx(0.036)), (1, 3): (1, 2, 1, pytest.approx(0.008))}
    assert (found.requests_ended, found.rounds, found.accepted) == (2, 2 + 4, 6 + 5)


def test_a_retracted_request_commits_nothing_in_the_step_that_was_under_way():
    engine, reqs = Engine(), [Req(50), Req(50)]
    engine.launch_decode(reqs)
    reqs[0].is_retracted = True
    engine.decoded(reqs, [3, 3])
    (cell,) = engine.counters().steps
    assert (cell.tokens, cell.requests, cell.bucket) == (4, 1, 2)


def test_plain_decoding_has_cells_of_its_own_and_an_unknown_launch_the_cell_of_the_others():
    engine, reqs = Engine(steps=0), [Req(50)]
    engine.launch_decode(reqs)
    engine.decoded(reqs, [0])
    engine.decoded(reqs, [2])
    found = {(cell.bucket, cell.draft_steps): cell.tokens for cell in engine.counters().steps}
    assert found == {(1, 0): 1, (OTHER_BATCHES, OTHER_STEPS): 3}


def test_a_swap_is_part_of_no_step():
    engine, reqs = Engine(), [Req(50)]
    for copied in (False, True):
        engine.launch_decode(reqs)
        engine.pass_s(0.01, "decode")
        if copied:
            engine.pass_s(0.004, "swap")
            engine.clock.spent("swap", 0.004)
        engine.decoded(reqs, [1])
    assert_time_is(engine)
    engine.pass_s(0.001, "decode")
    engine.launch_decode([])  # an empty batch is no step
    assert sum(cell.steps for cell in engine.counters().steps) == 2


def test_a_request_that_ends_in_its_prefill_counts_and_one_that_is_answered_later_counts_then():
    engine, reqs = Engine(), [Req(1), Req(1)]
    for req in reqs:
        req.take(1)
    engine.stream(reqs, skip_req=reqs[1])
    assert engine.counters().requests_ended == 1
    engine.stream(reqs)
    engine.stream(reqs)
    assert engine.counters().requests_ended == 2


def test_pacing_and_the_clock_share_one_meter():
    observed = []
    policy = SimpleNamespace(
        steps=lambda _batch: 3, observe=lambda *seen: observed.append(seen), draft_changed=lambda: None
    )
    engine = Engine()
    engine.policy = PacelineAdaptivePolicy(policy, (0, 1, 3), 3, meter=SharedMeter(engine.clock))
    reqs = [Req(50), Req(50)]
    for took_s in (0.01, 0.02, 0.03):
        engine.launch_decode(reqs)
        engine.pass_s(took_s, "decode")
        engine.decoded(reqs, [1, 0])
    assert [(batch, steps, cost_ms and round(cost_ms, 6)) for batch, steps, _, cost_ms in observed] == [
        (2, 3, None), (2, 3, 20.0), (2, 3, 30.0)
    ]  # fmt: skip
    (cell,) = engine.counters().steps
    assert (cell.steps, cell.tokens) == (3, 9)
    assert engine.policy.said().unmatched == 0


def test_a_clock_that_stopped_ends_pacing_and_is_no_longer_believed(caplog):
    engine = Engine()
    policy = SimpleNamespace(steps=lambda _batch: 3)
    engine.policy = PacelineAdaptivePolicy(policy, (0, 3), 3, meter=SharedMeter(engine.clock))
    for _ in range(3):
        assert engine.clock.before_resolve(None, None, SimpleNamespace()) is None  # a batch of another release
    assert "the step clock is off: 3 faults in a row" in caplog.text
    assert engine.counters() is None
    engine.launch_decode([Req(9)])
    engine.policy.on_verify_complete([1], 1)
    assert engine.policy.reason.startswith("RuntimeError: the step clock has stopped: 3 faults in a row")


@pytest.mark.parametrize(
    "fault",
    [
        lambda clock: clock.before_forward(None, None),
        lambda clock: clock.after_activate(None, None, 1),
        lambda clock: clock.before_block(None, None),
        lambda clock: clock.before_resolve(None, None, None),
        lambda clock: clock.before_stream(None, [None]),
        lambda clock: clock.after_prefill(None, None, None, None),
    ],
)
def test_no_fault_of_a_hook_leaves_it_and_a_few_far_apart_stop_nothing(fault, caplog):
    engine = Engine()
    assert [fault(engine.clock) for _ in range(2)] == [None, None]
    assert caplog.text.count("paceline: fault") == 2
    engine.launch_decode([req := Req(9)])
    engine.decoded([req], [1])
    assert sum(cell.tokens for cell in engine.counters().steps) == 2
    assert fault(engine.clock) is None
    assert engine.counters() is None  # three in a row: what it counts is not to be believed
    assert fault(engine.clock) is None
    assert caplog.text.count("paceline: fault") == 3  # off is off


def test_a_step_of_blocks_is_one_of_as_many_drafts_as_a_block_has_beside_its_root():
    engine = Engine()
    reqs = [Req(9), Req(9)]
    worker = SimpleNamespace(speculative_num_draft_tokens=8)
    engine.clock.before_block(worker, SimpleNamespace(forward_mode=EXTEND))
    engine.prefilled(reqs)
    mode = SimpleNamespace(is_extend=lambda: False, is_idle=lambda: False)
    engine.clock.before_block(worker, SimpleNamespace(forward_mode=mode, reqs=reqs))
    engine.decoded(reqs, [2, 0])
    (cell,) = engine.counters().steps
    assert (cell.bucket, cell.draft_steps, cell.steps, cell.tokens) == (2, 7, 1, 4)
    mode.is_idle = lambda: True
    engine.clock.before_block(worker, SimpleNamespace(forward_mode=mode, reqs=[]))
    assert engine.clock.meter.in_flight == 0


def test_notes_that_nobody_asks_for_are_added_up_by_the_scheduler_itself(monkeypatch):
    monkeypatch.setattr(step_clock, "MAX_NOTES", 10)
    engine, req = Engine(), Req(500)
    for _ in range(35):
        engine.launch_decode([req])
        engine.decoded([req], [1])
        assert len(engine.clock._notes) < 10
    assert sum(cell.steps for cell in engine.counters().steps) == 35


def test_without_its_hooks_a_clock_counts_nothing():
    assert StepClock().counters() is None


@given(st.lists(st.tuples(st.integers(1, 70), st.integers(0, 6), st.integers(0, 4)), max_size=120))
def test_a_table_of_steps_is_bounded_and_loses_none(steps):
    table, wanted = StepCells(), Counter()
    for batch, drafts, tokens in steps:
        table.add(batch, drafts, took_s=0.01, tokens=tokens, requests=batch)
        wanted.update(steps=1, tokens=tokens, requests=batch)
    cells = table.cells()
    assert len(cells) <= MAX_CELLS + 1
    for name in ("steps", "tokens", "requests"):
        assert sum(getattr(cell, name) for cell in cells) == wanted[name]
    assert all(sum(cell.durations) == cell.steps for cell in cells)


@pytest.mark.parametrize(("batch", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (65, 128)])
def test_buckets_end_at_powers_of_two(batch, bucket):
    assert bucket_of(batch) == bucket


def test_time_never_runs_backwards_in_what_others_read():
    time = BusyTime(10.0)
    seen = [time.seconds(10.5)["idle"]]
    time.launch(11.0)
    seen.append(time.seconds(11.5)["idle"])
    time.end("decode", 12.0, is_idle=True)
    seen += [time.seconds(12.0)["idle"], time.seconds(13.0)["idle"]]
    assert seen == [0.5, 1.0, 1.0, 2.0]
    assert time.seconds(13.0)["decode"] == 1.0
