"""Rejection sampling judged from text alone: against every path a server could take, and against one that serves."""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from paceline.buffer.stream.trace import NO_DRAFT, VerdictRule
from paceline.policies.acceptance import Tally, walk
from paceline.policies.paired import Paired
from paceline.policies.promotion import measure
from paceline.policies.rejection import (
    EstimatedRounds,
    accept_chances,
    expected_tally,
    expected_walk,
    served_beside_expected,
    target_logprobs,
    why_not_estimated,
)

V, T, S = 3, 5, 2  # tokens[0] is the prompt


class Model:
    """A distribution after every text, drawn once by seed; flatter where `flatness` is large."""

    def __init__(self, seed, flatness=1.0):
        self.seed, self.flatness, self.known = seed, flatness, {}

    def after(self, text):
        if text not in self.known:
            rng = np.random.default_rng([self.seed, *text])
            self.known[text] = rng.dirichlet(np.full(V, self.flatness))
        return self.known[text]


class Draft(Model):
    """As a real draft, it does not know all that the target does: its chance also depends on where its chain began."""

    def after_root(self, root, text):
        return self.after((root, *text))


TARGET, LIVE, OTHER = Model(1), Draft(2, 2.0), Draft(3, 0.7)


def served_exactly(draft):
    """Expected accepted drafts and rounds of a server, over every text, every draft and every coin; no text is kept.

    Rounds and drafts beyond tokens[T - 1] do not exist: the request ends there.
    """

    def from_root(text):
        if len(text) == T:
            return 0.0, 0.0
        accepted, rounds = drafting(text, len(text) - 1, 0)
        return accepted, rounds + 1.0

    def drafting(text, root, drafted):
        """From inside a round whose drafts so far were all accepted."""
        p, accepted, rounds = TARGET.after(text), 0.0, 0.0
        if len(text) == T:
            return 0.0, 0.0
        if drafted == S:  # the bonus token
            return weighted((mass, from_root((*text, token))) for token, mass in enumerate(p))
        q = draft.after_root(root, text)
        for token in range(V):  # proposed with q, accepted with min(1, p / q)
            chance = q[token] * min(1.0, p[token] / q[token])
            later = drafting((*text, token), root, drafted + 1)
            accepted += chance * (1.0 + later[0])
            rounds += chance * later[1]
        left = np.maximum(p - q, 0.0)  # what is not accepted is drawn again: the parts of `left` sum to its chance
        again = weighted((mass, from_root((*text, token))) for token, mass in enumerate(left))
        return accepted + again[0], rounds + again[1]

    return from_root((0,))


def weighted(outcomes):
    found = [(mass * pair[0], mass * pair[1]) for mass, pair in outcomes]
    return sum(accepted for accepted, _ in found), sum(rounds for _, rounds in found)


def logprobs_on(text, draft):
    """What replay gives for a text of T tokens: log q [T, S] of the draft, log p [T] of the target."""
    logp = np.full(len(text), np.nan, np.float32)
    logq = np.full((len(text), S), np.nan, np.float32)
    for s in range(len(text) - 1):
        logp[s + 1] = math.log(TARGET.after(text[: s + 1])[text[s + 1]])
        for j in range(min(S, len(text) - 1 - s)):
            logq[s, j] = math.log(draft.after_root(s, text[: s + 1 + j])[text[s + 1 + j]])
    return logq, logp


def chance_of(text):
    return math.prod(TARGET.after(text[:i])[text[i]] for i in range(1, len(text)))


@pytest.mark.parametrize("draft", [LIVE, OTHER])
def test_the_mean_over_all_texts_is_what_a_server_serves_with_that_draft(draft):
    accepted = rounds = 0.0
    for rest in itertools.product(range(V), repeat=T - 1):
        text = (0, *rest)
        tally = expected_walk(accept_chances(*logprobs_on(text, draft)), 0, T - 2)
        accepted += chance_of(text) * tally.accepted
        rounds += chance_of(text) * tally.rounds
    assert (accepted, rounds) == pytest.approx(served_exactly(draft), rel=1e-5)


@pytest.mark.parametrize("draft", [LIVE, OTHER])
def test_the_mean_product_along_a_chain_is_the_chance_that_the_server_accepts_so_many(draft):
    for length in range(1, S + 1):
        survives = served = 0.0
        for path in itertools.product(range(V), repeat=length):
            text = (0, *path)
            q = [draft.after_root(0, text[: i + 1])[path[i]] for i in range(length)]
            p = [TARGET.after(text[: i + 1])[path[i]] for i in range(length)]
            served += math.prod(qi * min(1.0, pi / qi) for pi, qi in zip(p, q, strict=True))
            survives += chance_of(text) * math.prod(accept_chances(*logprobs_on(text, draft))[0, :length])
        assert survives == pytest.approx(served, rel=1e-5)


def test_with_chances_of_zero_and_one_the_expected_walk_is_the_walk():
    rng = np.random.default_rng(4)
    for _ in range(50):
        chances = (rng.random((12, 3)) < 0.7).astype(float)
        for s in range(12):
            chances[s, max(0, 11 - s) :] = 0.0  # nothing follows the last token
        runs = chances.cumprod(1).sum(1).astype(np.int32)
        _, accepted = walk(runs, 2, 10)
        assert expected_walk(chances, 2, 10) == Tally(float(accepted.sum()), float(len(accepted)))


@dataclass
class Server:
    """Serves a request by rejection sampling, coin by coin, and records what a trace records."""

    draft: Draft
    rng: np.random.Generator
    is_plain: Callable[[], bool] = lambda: False

    def serve(self, make_trace, number, length):
        text, rounds = (0, 0), []
        while len(text) < length:
            root, drafts, kept, chances = len(text) - 1, [], 0, []
            if self.is_plain():
                rounds.append((root, [NO_DRAFT] * S, 0, [(math.nan, math.nan)] * (S + 1)))
                text = (*text, self.draw(TARGET.after(text)))
                continue
            for _ in range(S):
                drafts.append(self.draw(self.draft.after_root(root, (*text, *drafts))))
            while kept < S:
                p, q = self.both(root, (*text, *drafts[:kept]))
                if self.rng.random() * q[drafts[kept]] >= p[drafts[kept]]:
                    break
                kept += 1
            p, q = self.both(root, (*text, *drafts[:kept]))
            own = self.draw(p if kept == S else np.maximum(p - q, 0.0))
            committed = (*drafts[:kept], own)
            for i, token in enumerate(committed):
                p, q = self.both(root, (*text, *committed[:i]))
                chances.append((math.log(p[token]), math.log(q[token]) if i < S else math.nan))
            rounds.append((root, drafts, kept, chances + [(math.nan, math.nan)] * (S - kept)))
            text = (*text, *committed)
        return as_trace(make_trace, number, text[:length], rounds)

    def both(self, root, text):
        return TARGET.after(text), self.draft.after_root(root, text)

    def draw(self, weights):
        return int(self.rng.choice(V, p=weights / weights.sum()))


def as_trace(make_trace, number, text, rounds):
    starts, drafted, accepted, chances = zip(*rounds, strict=True)
    bare = make_trace(number, rounds=0, steps=S, top_k=0, feature_dim=1)
    nodes = (len(rounds), S + 1, 0)
    recorded = replace(
        bare.rounds,
        starts=np.array(starts, np.int32),
        drafted=np.array(drafted, np.int32),
        accepted=np.array(accepted, np.int32),
        teacher_ids=np.zeros(nodes, np.int32),
        teacher_logprobs=np.zeros(nodes, np.float16),
        committed_logprobs=np.array(chances, np.float32),
    )
    features = np.zeros((len(text) - 1, 1), np.float32)
    tempered = replace(bare.sampling, temperature=0.7)
    return replace(
        bare, tokens=np.array(text, np.int32), context_len=1, features=features, rounds=recorded, sampling=tempered,
        verdict_rule=VerdictRule.REJECTION,
    )  # fmt: skip


def logq_of(trace, draft):
    logq, logp = logprobs_on(tuple(trace.tokens.tolist()), draft)
    recorded = target_logprobs(trace)[2:]
    is_known = ~np.isnan(recorded)
    np.testing.assert_allclose(recorded[is_known], logp[2:][is_known], rtol=1e-6)
    logq[0] = np.nan  # nothing can be drafted from the first token
    return logq


def estimated(trace, draft):
    return expected_tally(trace, logq_of(trace, draft))


def counted(trace):
    return Tally(int(trace.visible_accepted().sum()), len(trace.rounds))


LENGTH, REQUESTS = 9, 700


@pytest.fixture
def served(make_trace):
    """Requests of two servers of the same target, one per draft."""
    return traces_of_both(make_trace)


@functools.cache
def traces_of_both(make_trace):
    servers = [Server(draft, np.random.default_rng(seed)) for seed, draft in ((5, LIVE), (6, OTHER))]
    return [[server.serve(make_trace, i, LENGTH) for i in range(REQUESTS)] for server in servers]


def ratio_and_error(tallies):
    """Pooled accepted per round and its standard error, requests as units."""
    a = np.array([tally.accepted for tally in tallies])
    r = np.array([tally.rounds for tally in tallies])
    ratio = a.sum() / r.sum()
    return ratio, float(np.std(a - ratio * r, ddof=1) / math.sqrt(len(a)) / r.mean())


def test_text_served_by_either_draft_tells_the_accept_length_of_both(served):
    for place, draft in enumerate((LIVE, OTHER)):
        real, real_error = ratio_and_error([counted(trace) for trace in served[place]])
        for texts in served:
            estimate, error = ratio_and_error([estimated(trace, draft) for trace in texts])
            assert abs(estimate - real) < 3.5 * math.hypot(error, real_error)
            assert error < 0.8 * real_error  # the coins are averaged over, the text is not
    lengths = [ratio_and_error([counted(trace) for trace in traces])[0] for traces in served]
    assert abs(lengths[0] - lengths[1]) > 0.1  # so that taking one draft for the other would be seen


def test_the_gate_finds_the_better_draft_in_text_that_the_other_one_served(served):
    texts = served[0]
    live, other = ([estimated(trace, draft) for trace in texts] for draft in (LIVE, OTHER))
    real = [ratio_and_error([counted(trace) for trace in traces])[0] for traces in served]
    better, worse = (live, other) if real[0] > real[1] else (other, live)
    pairs = [Paired("", *both) for both in zip(better, worse, strict=True)]
    found = measure(pairs, confidence=0.95, rng=np.random.default_rng(0))
    assert found.requests == REQUESTS
    assert found.interval[0] < abs(real[0] - real[1]) < found.interval[1]
    assert found.interval[0] > 0.0


def test_served_rounds_lie_about_what_was_to_be_expected_of_the_draft_that_served_and_of_no_other(served):
    for place, draft in enumerate((LIVE, OTHER)):
        found = [served_beside_expected(trace, logq_of(trace, draft)) for trace in served[place]]
        whole = sum(found, EstimatedRounds())
        assert whole.rounds == sum(len(trace.rounds) for trace in served[place])
        assert whole.accepted == sum(counted(trace).accepted for trace in served[place])
        assert abs(whole.accepted - whole.expected) < 3.5 * math.sqrt(whole.variance)
        errors = [(one.accepted - one.expected) / math.sqrt(one.variance) for one in found]
        assert 0.9 < np.var(errors) < 1.1  # the variance is that of the coins
        other = (LIVE, OTHER)[1 - place]
        mistaken = [served_beside_expected(trace, logq_of(trace, other)).expected for trace in served[place]]
        assert abs(sum(mistaken) - whole.accepted) > 5 * math.sqrt(whole.variance)


def test_the_variance_of_a_round_is_that_of_how_many_of_its_drafts_are_accepted(served):
    trace = next(trace for trace in served[0] if len(trace.rounds) > 3)
    logq = logq_of(trace, LIVE)
    chances = accept_chances(logq, target_logprobs(trace))[trace.rounds.starts]
    means, squares = [], []
    for first, second in chances:
        mass = {0: 1 - first, 1: first * (1 - second), 2: first * second}
        means.append(sum(k * chance for k, chance in mass.items()))
        squares.append(sum(k * k * chance for k, chance in mass.items()))
    found = served_beside_expected(trace, logq)
    assert found.expected == pytest.approx(sum(means))
    assert found.variance == pytest.approx(sum(squares) - sum(mean**2 for mean in means))


def test_rounds_are_compared_by_the_drafts_they_proposed(served):
    """A round of plain decoding says nothing, one of a single draft tells of one."""
    trace = next(trace for trace in served[0] if trace.rounds.accepted[:2].tolist() == [0, 0])
    drafted = trace.rounds.drafted.copy()
    drafted[0], drafted[1, 1] = NO_DRAFT, NO_DRAFT
    shorter = replace(trace, rounds=replace(trace.rounds, drafted=drafted))
    logq = logq_of(trace, LIVE)
    first, second = accept_chances(logq, target_logprobs(trace))[trace.rounds.starts[:2]]
    whole, part = served_beside_expected(trace, logq), served_beside_expected(shorter, logq)
    assert part.rounds == whole.rounds - 1
    missing = first[0] + first[0] * first[1] + second[0] * second[1]
    assert part.expected == pytest.approx(whole.expected - missing)
    logq[trace.rounds.starts[-1] :] = np.nan  # no feature there
    assert served_beside_expected(trace, logq).rounds == whole.rounds - 1


def test_a_text_that_tells_nothing_says_why(served):
    trace = served[0][0]
    assert why_not_estimated(trace) == ""
    edited = replace(trace, sampling=replace(trace.sampling, edited=True))
    assert why_not_estimated(edited) == "edited logits"
    assert why_not_estimated(replace(trace, verdict_rule=VerdictRule.BLOCK)) == "got the rule block"
    unknown = trace.rounds.committed_logprobs.copy()
    unknown[-1, 0, 0] = np.nan  # one token of them all, as where top-k or top-p began to hold
    for chances in (unknown, None):
        limited = replace(trace, rounds=replace(trace.rounds, committed_logprobs=chances))
        assert why_not_estimated(limited) == "target's chances not recorded"


def test_rounds_begin_and_end_where_there_is_something_to_draft_from(served):
    trace = next(trace for trace in served[0] if len(trace.rounds) >= 5)
    logq = logq_of(trace, LIVE)
    first, second, last = (int(trace.rounds.starts[i]) for i in (0, 1, -1))
    chances = accept_chances(logq, target_logprobs(trace))
    assert expected_tally(trace, logq) == expected_walk(chances, first, LENGTH - 2)
    late = logq.copy()
    late[: first + 1] = np.nan
    assert expected_tally(trace, late) == expected_walk(chances, second, LENGTH - 2)
    early = logq.copy()
    early[last:] = np.nan
    assert expected_tally(trace, early) == expected_walk(chances, first, last - 1)
    assert expected_tally(trace, np.full_like(logq, np.nan)) == Tally()


PLAIN_TEXT = 14


@functools.cache
def with_plain_steps(make_trace):
    """Requests of which one step in four committed a token without drafts, and nobody recorded its chance."""
    coins, server = np.random.default_rng(8), Server(LIVE, np.random.default_rng(7))
    server.is_plain = lambda: coins.random() < 0.25
    return [server.serve(make_trace, i, PLAIN_TEXT) for i in range(REQUESTS)]


def test_a_step_without_drafts_leaves_the_rest_of_its_request_to_judge(make_trace):
    """The text ends before its token, and another one begins with it."""
    found = Tally()
    for trace in with_plain_steps(make_trace):
        assert why_not_estimated(trace) == ""
        logq, logp = logq_of(trace, LIVE), target_logprobs(trace)
        chances, walked = accept_chances(logq, logp), Tally()
        unknown = [at for at in range(2, PLAIN_TEXT) if np.isnan(logp[at])]
        for first, end in itertools.pairwise([1, *unknown, PLAIN_TEXT]):
            if end - first > 1:
                cut = chances[:end].copy()
                for s in range(end):
                    cut[s, max(0, end - 1 - s) :] = 0.0
                walked += expected_walk(cut, first, end - 2)
        tally = expected_tally(trace, logq)
        assert (tally.accepted, tally.rounds) == pytest.approx((walked.accepted, walked.rounds))
        found += tally
    assert found.rounds > REQUESTS


def test_beside_steps_without_drafts_served_rounds_still_lie_about_what_was_to_be_expected(make_trace):
    traces = with_plain_steps(make_trace)
    whole = sum((served_beside_expected(trace, logq_of(trace, LIVE)) for trace in traces), EstimatedRounds())
    assert whole.rounds > REQUESTS
    assert abs(whole.accepted - whole.expected) < 3.5 * math.sqrt(whole.variance)


def test_a_token_outside_the_drafts_vocabulary_is_never_accepted():
    logq, logp = logprobs_on((0, 1, 2, 0, 1), LIVE)
    before = accept_chances(logq, logp)
    assert (before[: T - 2] > 0).all()
    logq[1, 0] = -np.inf
    after = accept_chances(logq, logp)
    assert after[1, 0] == 0.0
    assert np.array_equal(np.delete(after, 1, 0), np.delete(before, 1, 0))
    assert expected_walk(after, 1, 3).rounds > expected_walk(before, 1, 3).rounds
