"""The bench of serving speed: what blocks say, streams cut into chunks, and runs that go on."""

import json
import math
import random
import statistics
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from paceline.benchmarks.serving_speed import figures, loop, recorded, stream, table
from paceline.benchmarks.serving_speed.arms import MEANING, ORACLE, PACELINE, PLAIN, STATIC, Drafts, arms
from paceline.benchmarks.serving_speed.figures import AFTER, BEFORE, RECOVERED, WHOLE
from paceline.benchmarks.serving_speed.plot import plot
from paceline.benchmarks.serving_speed.recorded import Block, Conditions, Hold, Run
from paceline.buffer.board.counters import Counters, LearnerCounters
from paceline.buffer.board.member_status import MemberStatus, PacingSaid, WorkSaid
from paceline.buffer.errors import ConfigError
from paceline.rig.models.target import TargetModel
from paceline.rig.prompts import Prompt
from paceline.rig.speed.turn import Answer, Turn
from scipy import stats

SIZES = {1: 2, 4: 4}
ARMS = (PLAIN, STATIC, PACELINE)
CONDITIONS = Conditions(
    mode="elsewhere",
    seed=0,
    stream="s",
    first_domain="py",
    arms=ARMS,
    drafts={STATIC: "d"},
    layers=40,
    max_tokens=8,
    target="t",
    commit="c0ffee",
    machine={"cores": 2},
)


def made_turn(arm, concurrency, ms_per_token, requests, *, ids=range(8)):
    """Answers one after the other, a token each `ms_per_token`."""
    answers, at_ms = [], 0.0
    for number in range(requests):
        arrivals = tuple((at_ms + ms_per_token * (i + 1), i + 1) for i in range(8))
        answers.append(
            Answer(request=f"r-{number}", sent_ms=at_ms, arrivals=arrivals, output_ids=tuple(ids), accepted=6, rounds=4)
        )
        at_ms = arrivals[-1][0]
    return Turn(arm, concurrency, 0.0, tuple(answers))


def made_run(domains, paces, *, spent=(), seed=0):
    """`paces[arm]` is milliseconds per token by chunk; concurrency 4 takes three times as long per request."""
    blocks = [
        Block(
            chunk=number,
            domain=domain,
            concurrency=c,
            turns=tuple(made_turn(arm, c, paces[arm][number] * (3 if c == 4 else 1), SIZES[c]) for arm in ARMS),
            live=0,
        )
        for number, domain in enumerate(domains)
        for c in SIZES
    ]
    holds = [
        Hold(chunk=number, seconds=1.0, learner_seconds=seconds, rounds=number + 1, pacing={})
        for number, seconds in enumerate(spent)
    ]
    return Run(replace(CONDITIONS, seed=seed), tuple(blocks), tuple(holds))


def drawn_run(seed, chunks=7):
    draw = random.Random(seed)
    paces = {arm: [draw.uniform(10.0, 60.0) for _ in range(chunks)] for arm in ARMS}
    return made_run(
        ["py"] * 2 + ["prose"] * (chunks - 2), paces, spent=[draw.uniform(0.0, 0.3) for _ in range(chunks)]
    ), paces


def t_interval(logs):
    centre, half = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=centre, scale=half)
    return math.exp(centre), math.exp(low), math.exp(high)


@pytest.mark.parametrize(
    ("phase", "chunks"), [(BEFORE, [0, 1]), (AFTER, [2, 3, 4, 5, 6]), (RECOVERED, [4, 5, 6]), (WHOLE, range(7))]
)
@pytest.mark.parametrize("concurrency", SIZES)
def test_a_speed_is_the_mean_ratio_of_the_blocks_of_its_phase(phase, chunks, concurrency):
    (one, paces), (two, more) = drawn_run(1), drawn_run(2)
    found = figures.speed([one, two], PACELINE, STATIC, concurrency=concurrency, phase=phase)
    logs = [math.log(each[STATIC][n] / each[PACELINE][n]) for each in (paces, more) for n in chunks]
    assert (found.mean, *found.interval) == pytest.approx(t_interval(logs))


def test_after_recovery_is_the_last_half_of_every_later_domain():
    paces = {arm: [10.0] * 9 for arm in ARMS}
    run = made_run(["py", "prose", "prose", "prose", "prose", "c", "c", "c", "py"], paces)
    assert figures.recovered_chunks(run) == {3, 4, 6, 7}
    alone = made_run(["prose"], paces)
    assert figures.recovered_chunks(alone) == {0}


def test_a_phase_without_a_block_has_no_figure():
    run = made_run(["prose"], {arm: [10.0] for arm in ARMS})
    assert figures.speed([run], STATIC, PLAIN, concurrency=1, phase=BEFORE) is None
    assert figures.speed([run], ORACLE, PLAIN, concurrency=1, phase=WHOLE) is None
    assert figures.token_ms([run], STATIC, 1, BEFORE) is None
    assert figures.speed([run], STATIC, PLAIN, concurrency=1, phase=WHOLE).pairs == 1


def test_times_per_token_are_pooled_over_tokens():
    run, paces = drawn_run(3)
    p50, p99 = figures.token_ms([run], STATIC, 4, AFTER)
    waits = sorted(3 * paces[STATIC][n] for n in range(2, 7) for _ in range(7 * SIZES[4]))
    assert p50 == pytest.approx(statistics.median(waits))
    assert waits[int(0.98 * len(waits))] <= p99 <= waits[-1] + 1e-9


def test_the_tokens_of_a_chunk_share_its_wait():
    answer = Answer(
        request="r",
        sent_ms=5.0,
        arrivals=((10.0, 1), (16.0, 4), (17.0, 5)),
        output_ids=tuple(range(5)),
        accepted=2,
        rounds=2,
    )
    turn = Turn(STATIC, 1, 0.0, (answer,))
    assert turn.token_ms() == pytest.approx([2.0, 2.0, 2.0, 1.0])
    assert turn.seconds == pytest.approx(0.012)
    assert turn.tokens_per_second == pytest.approx(5 / 0.012)


def even_by_steps(run, concurrency):
    """(requests, seconds) at the end of each chunk, and what had been gained by then."""
    requests = seconds = gained = 0.0
    found = []
    for hold in run.holds:
        block = next(b for b in run.blocks if (b.chunk, b.concurrency) == (hold.chunk, concurrency))
        each = {arm: block.turn(arm).seconds / SIZES[concurrency] for arm in (STATIC, PACELINE)}
        asked = sum(SIZES.values())
        requests, seconds = requests + asked, seconds + asked * each[PACELINE]
        gained += asked * (each[STATIC] - each[PACELINE]) - hold.learner_seconds
        found.append((requests, seconds, gained))
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("concurrency", SIZES)
def test_learning_is_paid_for_once_more_was_saved_than_spent_for_good(seed, concurrency):
    run, _ = drawn_run(seed)
    found, steps = figures.break_even(run, concurrency), even_by_steps(run, concurrency)
    good = [n for n in range(len(steps)) if all(gained >= 0.0 for _, _, gained in steps[n:])]
    if good:
        assert (found.requests, found.seconds) == pytest.approx(steps[good[0]][:2])
        assert found.expected_requests is None
    else:
        assert (found.requests, found.seconds) == (None, None)
        last = (steps[-1][2] - steps[-4][2]) / (steps[-1][0] - steps[-4][0])
        expected = None if last <= 0 else steps[-1][0] - steps[-1][2] / last
        assert found.expected_requests == (expected if expected is None else pytest.approx(expected))
    assert found.saved_s - found.spent_s == pytest.approx(steps[-1][2])


def test_a_learner_without_time_of_its_own_has_nothing_to_pay_back():
    run, _ = drawn_run(8)
    shared = replace(
        run,
        holds=tuple(
            Hold(chunk=hold.chunk, seconds=None, learner_seconds=None, rounds=1, pacing={}) for hold in run.holds
        ),
    )
    assert (figures.has_holds(run), figures.has_holds(shared)) == (True, False)
    assert "what it took is in the tokens per second" in table.markdown("the command", [shared])


def test_one_changed_token_is_found():
    run = made_run(["py", "prose"], {arm: [10.0] * 2 for arm in ARMS})
    assert figures.differing([run]) == ([], 24)
    wrong = replace(
        run.blocks[3].turn(STATIC), answers=made_turn(STATIC, 4, 1.0, 4, ids=[0, 1, 2, 3, 4, 5, 6, 9]).answers
    )
    turns = tuple(wrong if turn.arm == STATIC else turn for turn in run.blocks[3].turns)
    changed = replace(run, blocks=(*run.blocks[:3], replace(run.blocks[3], turns=turns)))
    assert figures.differing([changed]) == ([f"static r-{n}" for n in range(4)], 24)
    assert table.lossless([changed]).startswith("20 of 24 answers")


def test_the_table_has_every_arm_and_phase(tmp_path):
    runs = [drawn_run(seed)[0] for seed in (4, 5)]
    text = table.markdown("the command", runs)
    assert all(f"| {arm} |" in text for arm in ARMS)
    assert all(phase in text for phase in figures.PHASES)
    assert "24 of 24" not in text
    assert table.lossless(runs).startswith("168 of 168 answers")
    plot(runs, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_chunks_are_whole_and_of_one_domain():
    prompts = [Prompt(f"{d}-{n}", d, (n, len(d))) for d, count in (("py", 13), ("prose", 8)) for n in range(count)]
    chunks = list(stream.cut(prompts, SIZES))
    assert [(chunk.number, chunk.domain) for chunk in chunks] == [(0, "py"), (1, "py"), (2, "prose")]
    asked = [prompt for chunk in chunks for block in chunk.blocks.values() for prompt in block]
    assert asked == prompts[:12] + prompts[13:19]
    assert all([len(block) for block in chunk.blocks.values()] == [2, 4] for chunk in chunks)
    swapped = [prompts[1], prompts[0], *prompts[2:]]
    assert stream.fingerprint(chunks) != stream.fingerprint(list(stream.cut(swapped, SIZES)))


@pytest.fixture
def target(tmp_path):
    from paceline.rig.models.target import train_tokenizer

    train_tokenizer(["riders hold wheels " * 20]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 2048}')
    return TargetModel(tmp_path, "t", {}, 0)


def test_own_prompts_are_lines_of_text_or_of_json(tmp_path, target):
    texts = [f"riders hold {number}" for number in range(7)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": text, "domain": "own"}) for text in texts))
    found = [stream.from_file(tmp_path / name, target, SIZES, 8) for name in ("a.txt", "b.jsonl")]
    assert [left for _, left in found] == [1, 1]
    one, other = ([p.input_ids for c in chunks for b in c.blocks.values() for p in b] for chunks, _ in found)
    assert one == other
    (tmp_path / "few.txt").write_text("one")
    with pytest.raises(ConfigError, match="got 1 prompts, expected at least 6"):
        stream.from_file(tmp_path / "few.txt", target, SIZES, 8)
    with pytest.raises(ConfigError, match=r"none\.txt"):
        stream.from_file(tmp_path / "none.txt", target, SIZES, 8)


def test_a_run_is_read_as_it_was_kept(tmp_path):
    run, _ = drawn_run(6)
    assert recorded.open_run(tmp_path, run.conditions) == Run(run.conditions, (), ())
    for block in reversed(run.blocks):
        recorded.save_block(tmp_path, block)
    for hold in run.holds:
        recorded.save_hold(tmp_path, hold)
    (tmp_path / "blocks" / ".writing-9999-001.json").write_text("{")
    assert recorded.load_run(tmp_path) == run
    later = replace(run.conditions, commit="abc")
    assert recorded.open_run(tmp_path, later) == run
    with pytest.raises(SystemExit, match="expected"):
        recorded.open_run(tmp_path, replace(run.conditions, layers=8))


@pytest.mark.parametrize(
    ("status", "is_idle"),
    [
        (MemberStatus(at=11.0, work=WorkSaid(phase="idle", phase_s=1.0)), True),
        (MemberStatus(at=9.0, work=WorkSaid(phase="idle", phase_s=1.0)), False),
        (MemberStatus(at=11.0, work=WorkSaid(phase="train", phase_s=1.0)), False),
        (MemberStatus(at=11.0), False),
        (MemberStatus(), False),
    ],
)
def test_a_learner_is_idle_once_it_has_said_so(status, is_idle):
    assert loop.is_idle_since(SimpleNamespace(learner_status=lambda: status), 10.0)() is is_idle


def busy(seconds):
    learner = LearnerCounters(rounds=2, seconds={"train": seconds, "idle": 1000.0})
    return MemberStatus(counters=Counters(at=1.0, boot="b", learner=learner))


def test_the_learners_seconds_are_those_since_the_last_hold():
    status = busy(30.0)
    paced = MemberStatus(pacing=PacingSaid(policy="goodput"))
    reader = SimpleNamespace(learner_status=lambda: status, replica_status=lambda: paced)
    whole = loop.Loop(None, {PACELINE: reader}, PACELINE, 1)
    status = busy(37.5)
    told = {PACELINE: msgspec.to_builtins(paced.pacing)}
    assert whole.noted(0, 20.0) == Hold(chunk=0, seconds=20.0, learner_seconds=7.5, rounds=2, pacing=told)
    status = busy(90.0)  # stopped within a phase
    assert whole.noted(1, 20.0).learner_seconds == 20.0
    status = MemberStatus()  # silent
    assert whole.noted(2, 20.0).learner_seconds == 0.0
    assert whole.noted(3).learner_seconds is None
    assert whole.is_paced()


def test_arms_differ_in_draft_pacing_and_capture_alone(tmp_path):
    every = arms(Drafts(tmp_path / "s", tmp_path / "r", tmp_path / "o"))
    assert [arm.name for arm in every] == [*MEANING]
    assert [arm.name for arm in every if arm.is_captured] == [PACELINE]
    assert [arm.name for arm in every if not arm.needs_paceline] == [PLAIN, STATIC]
    assert ORACLE not in [arm.name for arm in arms(Drafts(tmp_path, tmp_path, None))]
    assert [arm.name for arm in arms(Drafts(tmp_path, tmp_path, None), ("random",))] == [*ARMS, "random"]
