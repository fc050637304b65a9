"""The gate bench without servers and training: streams, what a rule may see, what it is judged by, equal drafts."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from paceline.benchmarks.gating import equal, outcome, results, rules, streams
from paceline.benchmarks.gating.line import blocks
from paceline.benchmarks.gating.matrix import Matrix, load_matrix
from paceline.benchmarks.gating.pool import Pool, poisoned, shortened
from paceline.benchmarks.gating.prequential_rules import Line, Snapshot
from paceline.benchmarks.gating.report import heading, markdown
from paceline.benchmarks.gating.table import RULES
from paceline.benchmarks.gating.view import View
from paceline.policies.acceptance import Tally
from paceline.policies.prequential import PrequentialRules

TOKENS, PER_ROUND = 60, 2


def made(rounds_of, *, chunks: int = 4, requests: int = 8, spread: float = 0.0, **changes) -> Matrix:
    """A line whose version v needs `rounds_of(v, chunk)` rounds for every request of a chunk, give or take."""
    rng = np.random.default_rng(0)
    block_N = np.repeat(np.arange(chunks * PER_ROUND), requests // PER_ROUND).astype(np.int32)
    held_out_N = np.arange(len(block_N)) % 5 == 0
    versions = chunks * PER_ROUND
    expected = np.array([[rounds_of(v, b // PER_ROUND) for b in block_N] for v in range(versions)], float)
    noise = np.exp(rng.normal(0.0, spread, expected.shape)) if spread else 1.0
    rounds_VN = np.clip(np.round(expected * noise), 15, TOKENS).astype(np.int32)
    is_scored = (block_N >= np.arange(versions)[:, None]) | held_out_N | changes.pop("everywhere", False)
    names = np.array(["ada"] * len(block_N))
    made = Matrix(
        np.where(is_scored, TOKENS - rounds_VN, -1).astype(np.int32), np.where(is_scored, rounds_VN, -1), block_N,
        held_out_N, np.ones(len(block_N), bool), names, names, PER_ROUND, {"stream": "made", "seed": 0},
    )  # fmt: skip
    return replace(made, **changes)


@pytest.fixture
def pool(make_trace) -> Pool:
    domains = {"py": 30, "prose": 30, "html": 30, "c": 60}
    return Pool(
        {
            name: tuple(
                make_trace(n, request_id=f"{name}-{n:04d}", trace_id=f"{name}-{n}", vocab=streams.WORDS)
                for n in range(count)
            )
            for name, count in domains.items()
        },
        "",
    )


def plan_named(name: str, chunks: int = 5) -> streams.StreamPlan:
    return next(plan for plan in streams.plans(chunks) if plan.name == name)


def test_a_stream_draws_no_request_twice_and_keeps_its_shares(pool):
    drawn = streams.drawn(plan_named("shift"), pool, seed=3, chunk_requests=9)
    sources = [request.trace.request_id.rsplit("-shift-", 1)[0] for request in drawn]
    assert len(set(sources)) == len(sources) == 45
    domains = [Counter() for _ in range(5)]
    for name, request in zip(sources, drawn, strict=True):
        domains[request.chunk][name.partition("-")[0]] += 1
    assert domains == [{"py": 3, "prose": 3, "html": 3}] * 2 + [{"c": 9}] * 3
    again = streams.drawn(plan_named("shift"), pool, seed=3, chunk_requests=9)
    assert [r.trace.request_id for r in again] == [r.trace.request_id for r in drawn]
    other = streams.drawn(plan_named("shift"), pool, seed=4, chunk_requests=9)
    assert [r.trace.request_id for r in other] != [r.trace.request_id for r in drawn]


def test_too_few_recorded_requests_end_the_bench(pool):
    with pytest.raises(SystemExit, match="'c': got 60 requests, expected 61"):
        streams.drawn(replace(plan_named("shift"), shares=({"c": 1.0},)), pool, seed=0, chunk_requests=61)


@pytest.mark.parametrize("plan", streams.plans(), ids=lambda plan: plan.name)
def test_every_stream_has_a_share_for_every_request(plan):
    assert len(plan.shares) == streams.CHUNKS
    for shares in plan.shares:
        assert sum(shares.values()) == pytest.approx(1.0)
        counts = streams.apportioned(shares, streams.CHUNK_REQUESTS)
        assert sum(counts.values()) == streams.CHUNK_REQUESTS
        assert all(abs(counts[domain] - 40 * share) < 1.0 for domain, share in shares.items())


def test_poison_is_one_tenant_s_and_changes_committed_tokens_alone(pool):
    drawn = streams.drawn(plan_named("poison"), pool, seed=0, chunk_requests=12)
    assert {(request.is_honest, request.trace.tenant == streams.POISONER) for request in drawn} == {
        (True, False),
        (False, True),
    }
    assert {request.chunk for request in drawn if not request.is_honest} <= set(plan_named("poison").poisoned)
    trace = pool.by_domain["py"][1]
    bad, context = poisoned(trace, streams.WORDS), trace.context_len
    assert bad.tokens[:context].tolist() == trace.tokens[:context].tolist()
    assert np.mean(bad.tokens[context::2] != trace.tokens[context::2]) > 0.9
    assert bad.tokens[context + 1 :: 2].tolist() == trace.tokens[context + 1 :: 2].tolist()
    assert np.array_equal(bad.features, trace.features)
    assert bad.tokens.tolist() == poisoned(trace, streams.WORDS).tokens.tolist()


def test_a_shortened_trace_is_that_of_a_request_that_ended_earlier(make_trace):
    trace = make_trace(3, rounds=9, context_len=5)
    cut = shortened(trace, 7)
    assert cut.tokens.tolist() == trace.tokens[:12].tolist()
    assert len(cut.features) == 12
    kept = [start for start in trace.rounds.starts.tolist() if start < 12]
    assert cut.rounds.starts.tolist() == kept
    assert cut.rounds.accepted.tolist() == trace.rounds.accepted[: len(kept)].tolist()
    assert shortened(trace, 999).tokens.tolist() == trace.tokens.tolist()


def test_blocks_are_equal_parts_of_a_chunk_in_the_order_claimed(make_trace):
    chunks = [0] * 7 + [1] * 4
    requests = [streams.StreamedRequest(make_trace(1), chunk) for chunk in chunks]
    assert blocks(requests, 2).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert blocks(requests, 1).tolist() == chunks


def test_a_matrix_is_read_as_it_was_written(tmp_path):
    matrix = made(lambda v, c: 30 - v)
    matrix.save(tmp_path / "lines" / "m.npz")
    read = load_matrix(tmp_path / "lines" / "m.npz")
    for name in ("accepted_VN", "rounds_VN", "block_N", "held_out_N", "honest_N", "tenant_N", "domain_N"):
        assert np.array_equal(getattr(read, name), getattr(matrix, name))
    assert (read.blocks_per_round, read.card, read.chunks) == (PER_ROUND, {"stream": "made", "seed": 0}, 4)


def test_a_rule_sees_neither_the_future_nor_what_a_version_has_learnt():
    seen = View(made(lambda v, c: 30 - v), chunk=1, live=0)
    assert (seen.newest, list(seen.blocks), seen.held_out()) == (4, [2, 3], [0, 5, 10, 15])
    assert seen.tally(0, 1) == Tally(30, 30)
    assert seen.tally(2, 8) == Tally(32, 28)
    assert seen.tally(4, 5) == Tally(34, 26)  # held out
    for version, request in ((6, 5), (0, 16), (2, 1)):
        with pytest.raises(LookupError):
            seen.tally(version, request)


def test_what_is_served_is_what_the_decisions_say_and_the_oracle_is_the_best_of_them():
    # Version 4, after two rounds, is the best one; later ones are worse.
    matrix = made(lambda v, c: 30 - v if v <= 4 else 40)
    assert outcome.delivered(matrix, rules.NoGate()).served == (0, 2, 4, 6)
    best = outcome.oracle(matrix)
    assert (best.served, best.swaps) == ((0, 2, 4, 4), 2)
    assert best.total == Tally(8 * (30 + 32 + 34 + 34), 8 * (30 + 28 + 26 + 26))
    assert best.lengths == [60 / 30, 60 / 28, 60 / 26, 60 / 26]
    assert outcome.worse_swaps(matrix, outcome.delivered(matrix, rules.NoGate())) == 1
    assert outcome.worse_swaps(matrix, best) == 0


def test_what_a_chunk_does_to_a_draft_is_seen_on_the_next_one():
    matrix = made(lambda v, c: 40 if v >= 4 else 30)
    assert outcome.around(matrix, [1]) == (Tally(8 * 20, 8 * 40), Tally(8 * 30, 8 * 30))
    assert outcome.around(matrix, [1, 2]) == (Tally(16 * 20, 16 * 40), Tally(16 * 30, 16 * 30))


def test_what_a_poisoner_sends_is_not_counted_as_served():
    matrix = made(lambda v, c: 30)
    honest_N = np.arange(32) % 4 == 0
    assert outcome.delivered(replace(matrix, honest_N=honest_N), rules.NoGate()).total == Tally(8 * 30, 8 * 30)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_delivers_a_line_that_gains_and_none_but_no_gate_one_that_loses(rule):
    gains = made(lambda v, c: 45 - 1.5 * v, chunks=12, requests=20, spread=0.03)
    losses = made(lambda v, c: 30 + 1.5 * v, chunks=12, requests=20, spread=0.03)
    assert outcome.delivered(gains, rule.make(0)).served[-1] >= 16
    swaps = outcome.delivered(losses, rule.make(0)).swaps
    assert swaps == (11 if rule.name == "no gate" else 0)


def test_the_snapshot_itself_goes_live_and_the_line_as_it_has_become():
    matrix = made(lambda v, c: 40 if v == 0 else 20, chunks=3, requests=40)
    assert outcome.delivered(matrix, Snapshot(PrequentialRules())).served == (0, 0, 2)
    assert outcome.delivered(matrix, Line(PrequentialRules())).served == (0, 2, 2)


def test_a_line_ruined_in_its_last_block_is_not_delivered():
    matrix = made(lambda v, c: 55 if v == 2 else 20 if v else 40, chunks=3, requests=40)
    assert outcome.delivered(matrix, Line(PrequentialRules())).served[1] == 0


def test_dealt_runs_hold_the_same_tallies_and_differ_in_everything_else():
    matrix = made(lambda v, c: 30 + v, chunks=6, requests=10, spread=0.1, everywhere=True)
    deal = equal.dealt(matrix, np.random.default_rng(1))
    copies = slice(0, None, PER_ROUND)
    assert sorted(map(tuple, np.sort(deal.rounds_VN[copies].T, axis=1).tolist())) == sorted(
        map(tuple, np.sort(matrix.rounds_VN[copies].T, axis=1).tolist())
    )
    assert deal.rounds_VN.min() > 0
    assert deal.held_out_N.sum() == matrix.held_out_N.sum()
    mean, spread = equal.gain_of_copies(matrix)
    lengths = 1 + matrix.accepted_VN[copies].sum(1) / matrix.rounds_VN[copies].sum(1)
    pairs = [a - b for i, a in enumerate(lengths) for b in lengths[i + 1 :]]
    assert (mean, spread) == (pytest.approx(np.mean(pairs)), pytest.approx(np.std(pairs)))


def test_among_equal_drafts_no_gate_swaps_every_round_and_a_line_hardly_ever():
    matrix = made(lambda v, c: 30, chunks=8, requests=20, spread=0.1, everywhere=True)
    chosen = [rule for rule in RULES if rule.name in {"no gate", "line"}]
    without, line = results.among_equals([matrix], chosen, runs=20)
    assert (without.rule, without.runs, without.promoted, without.swaps) == ("no gate", 20, 20, 140)
    assert line.promoted <= 3


def test_the_heading_says_whether_what_should_harm_does():
    plan = replace(plan_named("ruin"), ruined=(1,))
    matrix = made(lambda v, c: 40 if v >= 4 else 30, card={"stream": "ruin", "seed": 3})
    card = {"command": "--seeds 4", "machine": {"cores": 2}, "equal_copies": [(0.001, 0.02)]}
    text = heading(card, [plan_named("shift"), plan], [matrix])
    assert "- shift: known domains, then c alone\n" in text
    assert "chunks 1, and after each of them the newest draft has an accept length of 1.50" in text
    assert "the last one before them 2.00\n" in text
    assert "+0.001 (standard deviation 0.020)" in text
    assert "seeds 3." in text


def test_the_report_gives_ratios_and_recovery(tmp_path):
    matrix = made(lambda v, c: 40 - v if c < 2 else 50 - 2 * v, chunks=6, requests=10)
    lines = results.compared(matrix, RULES, shift_at=2)
    text = markdown(lines, [results.EqualFigures("line", 200, 3, 3)])
    assert "| held-out gate |" in text
    assert "| line | 200 | 1.5 % | 0.01 |" in text
    without = next(line for line in lines if line.rule == "no gate")
    assert without.recovered_after is not None
    assert without.accepted == outcome.delivered(matrix, rules.NoGate()).total.accepted
    results.write_results(tmp_path / "results.json", {"command": ""}, lines, [])
    assert '"recovered_after"' in (tmp_path / "results.json").read_text()
