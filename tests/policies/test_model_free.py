"""Drafters without a model: what they propose, how many rounds they would have needed, and when one does better."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import TraceMaker, build_trace
from hypothesis import given
from hypothesis import strategies as st
from paceline.buffer.board.counters import MODEL_FREE
from paceline.buffer.stream.trace import DraftTrace, VerdictRule, VerifyRounds
from paceline.policies.model_free import comparison
from paceline.policies.model_free.comparison import ModelFree
from paceline.policies.model_free.drafter import is_replayable, judged_tokens, rounds_needed
from paceline.policies.model_free.ngram_table import NgramTable
from paceline.policies.model_free.prompt_lookup import PromptLookup

LONGEST = 4
TEXTS = st.lists(st.integers(0, 3), max_size=40)


def looked_up(text: Sequence[int], most: int) -> list[int]:
    """Prompt lookup the slow way: the longest ending of the text that came before, its last occurrence."""
    for length in range(LONGEST, 0, -1):
        for place in range(len(text) - 1, length - 1, -1):
            if len(text) >= length and list(text[place - length : place]) == list(text[-length:]):
                return list(text[place : place + most])
    return []


def voted(texts: Sequence[Sequence[int]], most: int) -> list[int]:
    """The n-gram table the slow way: the votes on what follows a run are counted anew for every draft."""
    text = list(texts[-1])
    found: list[int] = []
    while len(found) < most:
        ending = [*text, *found][-LONGEST:]
        runs = [ending[-length:] for length in range(len(ending), 0, -1)]
        votes = next((all_votes for run in runs if (all_votes := followers(texts, run))), None)
        if votes is None:
            break
        found.append(majority(votes))
    return found


def followers(texts: Sequence[Sequence[int]], run: list[int]) -> list[int]:
    """What came after `run` in the texts, in order."""
    return [
        text[place]
        for text in texts
        for place in range(len(run), len(text))
        if list(text[place - len(run) : place]) == run
    ]


def majority(votes: Sequence[int]) -> int:
    """Of Boyer and Moore, but that the newest of two with as many votes wins."""
    candidate, lead = votes[0], 0
    for vote in votes:
        lead += 1 if vote == candidate else -1
        if lead == 0:
            candidate, lead = vote, 1
    return candidate


class Knows:
    """A drafter that knows the first `hits` of the tokens that come, then is wrong."""

    name = "knows"

    def __init__(self, text: Sequence[int], hits: int) -> None:
        self.text = list(text)
        self.hits = hits
        self.at = 0

    def open(self, tokens: Sequence[int]) -> None:
        self.at = len(tokens)

    def drafts(self, most: int) -> list[int]:
        right = self.text[self.at : self.at + min(self.hits, most)]
        return [*right, *[-2] * (most - len(right))]

    def commit(self, tokens: Sequence[int]) -> None:
        self.at += len(tokens)


@given(TEXTS, st.integers(1, 5))
def test_prompt_lookup_proposes_what_followed_the_last_time(text: list[int], most: int) -> None:
    drafter = PromptLookup()
    drafter.open([9, 9, 9])  # of another text, which is forgotten
    drafter.open(text[: len(text) // 2])
    drafter.commit(text[len(text) // 2 :])
    assert drafter.drafts(most) == looked_up(text, most)


@given(st.lists(TEXTS, min_size=1, max_size=4), st.integers(1, 5))
def test_the_table_proposes_what_mostly_followed_in_all_texts(texts: list[list[int]], most: int) -> None:
    table = NgramTable()
    for text in texts:
        table.open(text[: len(text) // 2])
        table.commit(text[len(text) // 2 :])
    assert table.drafts(most) == voted(texts, most)


def test_the_table_holds_so_many_rows_and_forgets_what_it_has_not_seen_for_longest() -> None:
    table = NgramTable(most_rows=100)
    table.commit([1, 2, 3, 4, 5])
    for token in range(1000, 2000):
        table.commit([token])
        if token % 20 == 0:  # seen again and again
            table.open([7, 8])
    assert len(table._rows) == 100
    table.open([7])
    assert table.drafts(1) == [8]
    table.open([1])
    assert table.drafts(1) == []


@pytest.mark.parametrize("hits", [0, 1, 2, 3])
def test_rounds_are_those_that_a_server_would_have_served(make_trace: TraceMaker, hits: int) -> None:
    trace = make_trace(1, rounds=9, steps=3)
    tokens = judged_tokens(trace)
    assert tokens == len(trace.tokens) - 9  # eight of context, and the first root
    needed = rounds_needed(Knows(trace.tokens.tolist(), hits), trace, 3)
    assert needed == math.ceil(tokens / (hits + 1))


def test_the_draft_that_served_would_need_as_many_rounds_as_it_did(make_trace: TraceMaker) -> None:
    trace = make_trace(2, rounds=12, steps=3)

    class Served(Knows):
        def drafts(self, most: int) -> list[int]:
            at = trace.rounds.starts.tolist().index(self.at - 1)
            return trace.rounds.drafted[at].tolist()

    assert rounds_needed(Served([], 0), trace, 3) == len(trace.rounds)


def test_a_prefix_that_is_known_is_read_as_well(make_trace: TraceMaker) -> None:
    whole = make_trace(3, context_len=8, rounds=6, feature_dim=0)
    prefix, rest = whole.tokens[:5], whole.tokens[5:]
    rounds = replace(whole.rounds, starts=whole.rounds.starts - 5)
    split = replace(whole, tokens=rest, prefix=prefix, offset=5, context_len=3, rounds=rounds)
    assert rounds_needed(PromptLookup(), split, 3) == rounds_needed(PromptLookup(), whole, 3)


def test_rounds_without_drafts_and_lowered_thresholds_are_left_out(make_trace: TraceMaker) -> None:
    trace = make_trace(4)
    drafted = trace.rounds.drafted.copy()
    drafted[1] = -1
    accepted = np.where(np.arange(len(drafted)) == 1, 0, trace.rounds.accepted)
    plain = SimpleNamespace(rounds=replace(trace.rounds, drafted=drafted, accepted=accepted.astype(np.int32)),
                            verdict_rule=VerdictRule.GREEDY)  # fmt: skip
    assert [is_replayable(one) for one in (trace, replace(trace, verdict_rule=VerdictRule.THRESHOLDS), plain)] == [
        True, False, False,
    ]  # fmt: skip
    found = model_free([replace(trace, verdict_rule=VerdictRule.THRESHOLDS)])
    assert found.by_label == []
    assert found.left_out == {"rounds without drafts, or accept thresholds": 1}
    found = model_free([replace(trace, draft_version=MODEL_FREE)])  # no draft served it that could be compared
    assert (found.by_label, found.left_out) == ([], {"served without a model": 1})


def test_so_many_tokens_are_replayed_of_one_claim(make_trace: TraceMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [make_trace(seed, rounds=5) for seed in range(6)]
    monkeypatch.setattr(comparison, "MOST_TOKENS", sum(len(trace.tokens) for trace in traces[:4]))
    found = model_free(traces)
    assert found.by_label[0].traces == 4
    assert found.left_out == {"more than one learning round replays": 2}


def model_free(traces: Sequence[DraftTrace]) -> ModelFree:
    ticks = count()
    found = ModelFree(lambda: next(ticks) * 1e-3)  # every replay takes a millisecond
    found.observe(traces)
    return found


def written(seed: int, label: str, tokens: Sequence[int], accepted: int) -> DraftTrace:
    """A trace of `tokens` after a prompt of one token, of whose three drafts `accepted` are accepted in every round."""
    starts = list(range(0, len(tokens) - 1, accepted + 1))
    drafted = [
        [tokens[s + 1 + j] if j < accepted and s + 1 + j < len(tokens) else 10**6 for j in range(3)] for s in starts
    ]
    seen = [min(accepted, len(tokens) - 1 - s) for s in starts]
    rounds = VerifyRounds(
        starts=np.array(starts, np.int32),
        drafted=np.array(drafted, np.int32),
        accepted=np.array(seen, np.int32),
        teacher_ids=np.zeros((len(starts), 4, 0), np.int32),
        teacher_logprobs=np.zeros((len(starts), 4, 0), np.float16),
    )

    none = np.zeros((0, 1), np.float32)
    return replace(
        build_trace(seed), tokens=np.array(tokens, np.int32), context_len=1, rounds=rounds, label=label, features=none
    )


def planted(accepted: int, seed: int = 0) -> list[DraftTrace]:
    """Forms that repeat themselves, and prose without a repetition; of both the draft has `accepted` accepted."""
    rng = np.random.default_rng(seed)
    form = rng.integers(0, 50, 12).tolist()
    traces = []
    for place in range(24):
        prose = rng.permutation(5000)[:60].tolist()
        traces.append(written(2 * place, "form", [7, *form * 5], accepted))
        traces.append(written(2 * place + 1, "prose", prose, accepted))
    return traces


def test_a_drafter_that_does_better_on_one_label_is_found_there_and_nowhere_else() -> None:
    everything, *labels = model_free(planted(accepted=1)).by_label
    assert (everything.label, everything.traces) == (None, 48)
    by_label = {row.label: row for row in labels}
    assert {row: by_label[row].accept_length for row in by_label} == pytest.approx({"form": 2.0, "prose": 59 / 30})
    lookup, table = by_label["form"].drafters
    # Of sixty tokens 13 come one by one, 47 in rounds of four; the table knows the form from the second trace on.
    assert lookup.accept_length == pytest.approx(60 / 25)
    assert lookup.gain == pytest.approx(30 / 25)
    assert table.accept_length > 3.5
    assert [one.is_better for one in by_label["form"].drafters] == [True, True]
    assert [one.is_better for one in by_label["prose"].drafters] == [False, False]


def test_none_does_better_than_a_draft_that_is_right() -> None:
    rows = model_free(planted(accepted=3)).by_label
    assert [one.is_better for row in rows for one in row.drafters] == [False] * 6
    assert all(one.gain <= 1.0 for row in rows for one in row.drafters)


def test_the_interval_is_that_of_the_ratio_with_traces_drawn_as_wholes() -> None:
    rng = np.random.default_rng(5)
    needed, served = rng.integers(10, 60, 50), rng.integers(10, 60, 50)
    found = comparison._compared("x", 1000, served.tolist(), needed.tolist())
    ratio = served.sum() / needed.sum()
    error = math.sqrt(50) * (served - ratio * needed).std(ddof=1) / needed.sum()  # the residuals' mean is 0
    assert found.gain == pytest.approx(ratio)
    assert (found.low, found.high) == pytest.approx(
        [ratio * math.exp(side * 3.290527 * error / ratio) for side in (-1, 1)]
    )
    assert comparison._compared("x", 1000, [9] * 7, [3] * 7).low is None


def test_the_newest_traces_count_and_what_was_replayed_before_a_restart_is_remembered() -> None:
    traces = planted(accepted=1)
    found = model_free([])
    found.remember(traces[:2])
    assert found.by_label == []
    found.observe(traces[2:20])
    assert found.by_label[1].drafters[1].accept_length == pytest.approx(4.0)  # the form was known from the start
    for _ in range(20):
        found.observe(traces)
    assert found.by_label[0].traces == comparison.WINDOW


def test_figures_are_of_the_draft_that_serves_now_once_it_has_served_enough() -> None:
    by_draft = [replace(trace, draft_version=place // 30) for place, trace in enumerate(planted(accepted=1))]
    found = model_free(by_draft[:30])
    assert found.by_label[0].traces == 30
    found.observe(by_draft[30:])  # 18 of the next draft: too few alone
    assert found.by_label[0].traces == 48
    found.observe([replace(trace, draft_version=1) for trace in by_draft[:22]])
    assert found.by_label[0].traces == 40  # all of the next draft, and none of the first


def test_processor_time_is_told_by_round() -> None:
    trace = written(0, "", list(range(11)), 1)
    found = model_free([trace])
    assert found.microseconds_per_round == pytest.approx({"prompt lookup": 100.0, "n-gram table": 100.0})
    assert [row.label for row in found.by_label] == [None]  # requests name no label
