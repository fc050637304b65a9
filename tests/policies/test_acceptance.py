"""Accepted length: walking along committed text, and comparing with what was served."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.buffer.stream.trace import VerdictRule
from paceline.policies.acceptance import Tally, identity, replayed_tally, served_tally, walk


def runs_of(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_accept_length_counts_the_bonus_token_and_pools_rounds():
    assert Tally(3, 2).accept_length == 2.5
    assert Tally(0, 0).accept_length == 1.0
    pooled = Tally(3, 1) + Tally(0, 2)
    assert pooled == Tally(3, 3)
    assert pooled.accept_length == 2.0


def test_walk_goes_from_root_to_the_root_after_the_targets_own_token():
    starts, accepted = walk(runs_of(-1, 2, 1, 0, 3, 2, 1, 0), first_root=1, last_root=6)
    assert (starts.tolist(), accepted.tolist()) == ([1, 4], [2, 3])
    assert starts.dtype == accepted.dtype == np.int32


def test_walk_ends_before_a_root_that_cannot_be_drafted_from():
    starts, accepted = walk(runs_of(-1, 0, 0, -1, 0), first_root=1, last_root=4)
    assert (starts.tolist(), accepted.tolist()) == ([1, 2], [0, 0])
    assert [part.tolist() for part in walk(runs_of(-1, -1), 0, 1)] == [[], []]


@given(st.lists(st.integers(0, 4), min_size=2, max_size=30))
def test_walked_rounds_leave_no_token_out(values):
    last_root = len(values) - 2
    runs = np.minimum(values, len(values) - 1 - np.arange(len(values))).astype(np.int32)
    starts, accepted = walk(runs, 0, last_root)
    committed = [token for s, a in zip(starts, accepted, strict=True) for token in range(s + 1, s + a + 2)]
    assert [token for token in committed if token < len(values)] == list(range(1, len(values)))
    assert accepted.tolist() == [runs[s] for s in starts]


def test_served_tally_counts_what_the_server_accepted(make_trace):
    trace = make_trace(3, rounds=5)
    assert served_tally(trace) == Tally(sum(trace.rounds.accepted.tolist()), 5)


def test_replayed_tally_starts_at_the_first_recorded_round(make_trace):
    trace = make_trace(3, rounds=4)
    assert replayed_tally(trace, served_runs(trace)) == served_tally(trace)
    nothing = np.zeros(len(trace.tokens), np.int32)
    assert replayed_tally(trace, nothing) == Tally(0, len(trace.tokens) - 1 - int(trace.rounds.starts[0]))


def test_replayed_tally_skips_recorded_roots_without_features(make_trace):
    trace = make_trace(3, rounds=4)
    runs = served_runs(trace)
    runs[: int(trace.rounds.starts[1])] = -1
    assert replayed_tally(trace, runs) == Tally(int(trace.rounds.accepted[1:].sum()), 3)
    assert replayed_tally(trace, np.full(len(trace.tokens), -1, np.int32)) == Tally()
    assert replayed_tally(make_trace(3, rounds=0), runs) == Tally()


def test_identity_holds_for_the_served_lengths_and_counts_every_difference(make_trace):
    trace = make_trace(3, rounds=4)
    runs = served_runs(trace)
    assert identity(trace, runs) == (4, 4)
    runs[trace.rounds.starts[2]] += 1
    assert identity(trace, runs) == (3, 4)
    runs[trace.rounds.starts[0]] = -1
    assert identity(trace, runs) == (2, 3)


def test_identity_compares_a_cut_last_round_by_its_visible_drafts(make_trace):
    whole = next(trace for trace in (make_trace(s) for s in range(50)) if trace.rounds.accepted[-1] == 3)
    cut = replace(whole, tokens=whole.tokens[:-2], features=whole.features[:-2])
    assert cut.visible_accepted()[-1] == 2
    assert identity(cut, served_runs(cut)) == (4, 4)
    assert served_tally(cut) == served_tally(whole)


def test_identity_does_not_ask_for_more_drafts_than_a_round_proposed(make_trace):
    whole = next(trace for trace in (make_trace(s) for s in range(50)) if trace.rounds.accepted[0] == 2)
    drafted = whole.rounds.drafted.copy()
    drafted[0, 2] = -1
    short = replace(whole, rounds=replace(whole.rounds, drafted=drafted))
    runs = served_runs(short)
    runs[short.rounds.starts[0]] = 3
    assert identity(short, runs) == (4, 4)
    assert identity(whole, runs) == (3, 4)


@pytest.mark.parametrize("changes", [{"replay_exact": False}, {"verdict_rule": VerdictRule.REJECTION}])
def test_identity_compares_nothing_that_replay_cannot_give(make_trace, changes):
    trace = make_trace(3, **changes)
    assert identity(trace, served_runs(trace)) == (0, 0)


def served_runs(trace) -> np.ndarray:
    """Runs that equal the served ones at the recorded roots and are zero elsewhere."""
    runs = np.zeros(len(trace.tokens), np.int32)
    runs[trace.rounds.starts] = trace.visible_accepted()
    return runs
