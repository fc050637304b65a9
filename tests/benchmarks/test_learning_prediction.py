"""Predicted against served accept length: the figures of benchmarks/calibration.py on traces made by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from paceline.benchmarks import calibration
from paceline.benchmarks.learning import prediction
from paceline.buffer.trace import VerifyRounds
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt

CONTEXT, TOKENS, STEPS = 4, 17, 3


def runs_of(seed):
    """What a draft would have had accepted at each root, capped by the tokens after it."""
    runs = np.random.default_rng(seed).integers(0, STEPS + 1, TOKENS).astype(np.int32)
    runs = np.minimum(runs, TOKENS - 1 - np.arange(TOKENS)).astype(np.int32)
    runs[0] = -1
    return runs


def serve(trace, runs, beyond=0):
    """The same text as a server drafting with `runs` returns it; the last round accepts drafts `beyond` its end."""
    starts, accepted, drafted, root = [], [], [], CONTEXT
    while root < TOKENS - 1:
        run = int(runs[root])
        drafts = [int(token) for token in trace.tokens[root + 1 : root + 1 + run]]
        starts.append(root)
        accepted.append(run)
        drafted.append(drafts + [99] * (STEPS - run))
        root += run + 1
    if starts[-1] + accepted[-1] == TOKENS - 1:  # its drafts reach the end
        accepted[-1] = min(accepted[-1] + beyond, STEPS)
    rounds = VerifyRounds(
        starts=np.array(starts, np.int32),
        drafted=np.array(drafted, np.int32),
        accepted=np.array(accepted, np.int32),
        teacher_ids=np.zeros((len(starts), STEPS + 1, 0), np.int32),
        teacher_logprobs=np.zeros((len(starts), STEPS + 1, 0), np.float16),
    )
    return replace(trace, rounds=rounds)


@pytest.fixture
def texts(make_trace):
    made = [make_trace(n, context_len=CONTEXT, rounds=TOKENS) for n in range(6)]
    bare = [replace(t, tokens=t.tokens[:TOKENS], features=t.features[: TOKENS - 1], rounds=rows(t, 0)) for t in made]
    return [serve(trace, runs_of(100 + n)) for n, trace in enumerate(bare)]


def rows(trace, count):
    names = ("starts", "drafted", "accepted", "teacher_ids", "teacher_logprobs")
    return VerifyRounds(**{name: getattr(trace.rounds, name)[:count] for name in names})


def test_the_same_texts_are_served_exactly_as_predicted_but_for_drafts_past_their_end(texts):
    runs = [runs_of(n) for n in range(6)]
    same = [serve(trace, run, beyond=2) for trace, run in zip(texts, runs, strict=True)]
    found = prediction.compare(3, "warm", list(zip(texts, runs, strict=True)), same, texts)
    rounds = sum(len(trace.rounds) for trace in same)
    accepted = sum(int(trace.rounds.accepted.sum()) for trace in same)
    assert found.predicted == found.within
    assert found.within.rounds == rounds
    assert found.same == Tally(accepted, rounds)
    assert found.same.accepted > found.within.accepted
    assert (found.equal_texts, found.equal_rounds) == ((6, 6), (rounds, rounds))
    assert found.other == Tally(sum(int(t.rounds.accepted.sum()) for t in texts), sum(len(t.rounds) for t in texts))
    assert found.errors()[2] == 0.0
    assert found.errors()[1] == pytest.approx((found.predicted.accepted - accepted) / rounds)


def test_a_round_served_otherwise_and_another_text_are_counted(texts):
    runs = [runs_of(n) for n in range(6)]
    same = [serve(trace, run) for trace, run in zip(texts, runs, strict=True)]
    wrong = runs[0].copy()
    wrong[CONTEXT] = (runs[0][CONTEXT] + 1) % (STEPS + 1)
    same[0] = serve(texts[0], wrong)
    tokens = same[1].tokens.copy()
    tokens[0] += 1
    same[1] = replace(same[1], tokens=tokens)
    found = prediction.compare(1, "x", list(zip(texts, runs, strict=True)), same, texts)
    equal, compared = found.equal_rounds
    assert found.equal_texts == (5, 6)
    assert compared == sum(len(trace.rounds) for trace in same)
    assert 0 < compared - equal <= len(same[0].rounds)


def test_the_standard_error_is_that_of_a_ratio_of_sums():
    tallies = [Tally(3, 10), Tally(8, 10), Tally(1, 10), Tally(4, 10)]
    shares = np.array([0.3, 0.8, 0.1, 0.4])  # equal rounds: a plain mean
    assert prediction.standard_error(tallies) == pytest.approx(shares.std(ddof=1) / 2.0)
    assert prediction.standard_error([Tally(2, 4)] * 3) == 0.0
    assert math.isnan(prediction.standard_error(tallies[:1]))


def test_the_table_tells_lengths_errors_and_their_medians():
    def predicted(number, accepted, other):
        tally = Tally(accepted, 100)
        return prediction.Prediction(number, "d", tally, Tally(other, 100), tally, tally, 0.05, (4, 4), (100, 100))

    lines = prediction.markdown([predicted(1, 50, 40), predicted(2, 100, 130), predicted(3, 150, 148)]).splitlines()
    assert lines[2] == (
        "| 1 | d | 1.500 | 1.400 | +0.100 | ± 0.050 | 1.500 | +0.000 | 1.500 | +0.000 | 4 of 4 | 100 of 100 |"
    )
    assert "-0.300" in lines[3]
    assert lines[-1].startswith("Median absolute error over 3 versions: 0.100 on other prompts, 0.000 on the same")


def make_prompts(domain, texts):
    return [Prompt(f"{domain}-{number:04d}", domain, (text,)) for number, text in enumerate(texts)]


def test_batches_take_the_domains_in_turn_and_no_text_twice_or_again():
    prompts = [*make_prompts("py", [1, 2, 3, 3, 4]), *make_prompts("c", [11, 12, 13, 14, 15])]
    found = calibration.batched(prompts, {(1,), (12,)}, requests=2, batches=3)
    assert [[prompt.input_ids for prompt in batch] for batch in found] == [
        [(2,), (11,)],
        [(3,), (13,)],
        [(4,), (14,)],
    ]
    with pytest.raises(SystemExit, match=r"got \{'py': 3, 'c': 4\}, expected 4 of each"):
        calibration.batched(prompts, {(1,), (12,)}, requests=2, batches=4)
