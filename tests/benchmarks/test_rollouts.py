"""The rollout bench: which draft each arm has at each step, what it accepts by replay, and what is kept and shown."""

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paceline.benchmarks import rollouts
from paceline.benchmarks.rl import arms, gate, recorded, seconds
from paceline.benchmarks.rl.arms import ARMS, StepArms, ensure_arms
from paceline.benchmarks.rl.recorded import RecordedRun, RunPlan, ensure_run
from paceline.benchmarks.rl.tables import parts_table, pooled, rate_table, seconds_table, steps_table
from paceline.learner.judging.paired_replay import tallies
from paceline.learner.model.draft_io import load_draft, load_target_embedding, random_draft
from paceline.policies.acceptance import Tally
from paceline.policies.paired import Paired
from paceline.policies.prequential import PrequentialRules, PrequentialTest
from paceline.rig.trace_file import write_traces

PLAN = RunPlan(learning_rate=1e-4, seed=0, steps=3, temperature=0.5, taught_at=0.0)
#: Made from rollouts of steps 0, 0 (a learner that was late) and 1.
VERSIONS = [{"number": number, "target": str(step)} for number, step in ((1, 0), (2, 0), (3, 1))]


def gaining(gain: float, prompt: str) -> Paired:
    """A request with this gain, of accept lengths that give it."""
    length = 2.0 * (1.0 + gain) / (1.0 - gain)
    return Paired("", Tally(max(length - 1.0, 0.0), 1), Tally(1, 1), prompt)


@pytest.fixture
def run(tiny_speculator: Any, tmp_path: Path) -> RecordedRun:
    """Three steps of four rollouts, each served by the draft whose number is its step."""
    traces = [
        tiny_speculator.serve(i, target_version=str(i // 4), draft_version=i // 4, request_id=f"r{i}")
        for i in range(12)
    ]
    write_traces(tmp_path / "traces.bin", {}, traces)
    shutil.copytree(tiny_speculator.draft, tmp_path / "drafts" / "0")
    for number in (1, 2, 3):
        random_draft(tiny_speculator.target, tmp_path / "drafts" / str(number), seed=number)
    notes = {"steps": [{"kl": 0.1 * i, "entropy": 2.0 - i} for i in range(3)], "versions": VERSIONS, "learner": {}}
    (tmp_path / "run.json").write_text(json.dumps(notes), encoding="utf-8")
    return RecordedRun(tmp_path)


def test_no_arm_drafts_with_what_learnt_from_the_step_itself(run: RecordedRun) -> None:
    assert [run.adapted_once(step) for step in range(3)] == [0, 1, 1]
    assert [run.newest(step) for step in range(3)] == [0, 2, 3]


def test_every_arm_is_replayed_on_the_rollouts_of_every_step(run: RecordedRun, tiny_speculator: Any) -> None:
    embedding, traces = load_target_embedding(tiny_speculator.target), run.traces()
    found = arms.replayed(run, tiny_speculator.target)
    numbers = {"zero-update": (0, 0, 0), "adapted once": (0, 1, 1), "following": (0, 1, 2), "newest": (0, 2, 3)}
    assert numbers.keys() == set(ARMS)
    for step, row in enumerate(found):
        assert (row.step, row.kl, row.entropy) == (step, pytest.approx(0.1 * step), 2.0 - step)
        assert row.tokens == sum(trace.committed_len for trace in traces[step])
        for arm, by_step in numbers.items():
            draft = load_draft(run.draft(by_step[step]), embedding)
            expected = sum(tallies(draft, traces[step], 3).values(), Tally())
            assert (row.accepted[arm], row.rounds[arm]) == (expected.accepted, expected.rounds)
    assert found[2].per_round("zero-update") != found[2].per_round("newest")


def test_a_replay_is_kept(run: RecordedRun, tiny_speculator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure_arms(run, tiny_speculator.target)
    monkeypatch.delattr(arms, "replayed")
    assert ensure_arms(run, tiny_speculator.target) == first


def test_a_run_is_made_once_and_one_that_was_interrupted_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, commands = tmp_path / "runs" / PLAN.name, []

    def demo(command: list[str], _log: Path) -> int:
        assert not folder.exists()
        commands.append(command)
        folder.mkdir()
        (folder / "run.json").write_text("{}", encoding="utf-8")
        return 0

    monkeypatch.setattr(recorded, "run_to_its_end", demo)
    folder.mkdir(parents=True)
    (folder / "traces.bin").touch()
    for _ in range(2):
        assert ensure_run(PLAN, folder, tmp_path / "data").folder == folder
    assert len(commands) == 1
    assert commands[0][1:3] == ["-m", "paceline.demo.grpo"]
    options = dict(zip(commands[0][3::2], commands[0][4::2], strict=True))
    assert options == {
        "--steps": "3", "--temperature": "0.5", "--learning-rate": "0.0001", "--taught-at": "0.0", "--seed": "0",
        "--data-dir": str(tmp_path / "data"), "--record": str(folder),
    }  # fmt: skip


def test_a_run_that_fails_is_told_of_with_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = recorded.run_to_its_end
    failing = [sys.executable, "-c", "print('no such flag'); raise SystemExit(3)"]
    monkeypatch.setattr(recorded, "run_to_its_end", lambda _, log: real(failing, log))
    with pytest.raises(SystemExit, match=r"(?s)exit code 3; the end of .*no such flag"):
        ensure_run(PLAN, tmp_path / PLAN.name, tmp_path)


def step(accepted: float, following: float, kl: float = 0.1) -> StepArms:
    by_arm = {"zero-update": accepted, "adapted once": 10.0, "following": following, "newest": 30.0}
    return StepArms(
        step=0,
        kl=kl,
        entropy=1.5,
        tokens=100,
        accepted=by_arm,
        rounds=dict.fromkeys(by_arm, 50.0),
        odds=2.5,
        shared=0.2,
    )


def test_the_last_third_is_pooled_and_ratios_are_of_pairs(run: RecordedRun) -> None:
    ours = {
        RunPlan(learning_rate=1e-4, seed=0, steps=6, temperature=0.5, taught_at=0.0): (
            run,
            [step(1, 1)] * 4 + [step(20, 22), step(20, 26, 0.3)],
        ),
        RunPlan(learning_rate=1e-4, seed=1, steps=6, temperature=0.5, taught_at=0.0): (
            run,
            [step(1, 1)] * 4 + [step(10, 24), step(10, 24, 0.5)],
        ),
    }
    assert (
        pooled(ours[RunPlan(learning_rate=1e-4, seed=0, steps=6, temperature=0.5, taught_at=0.0)][1][-2:], "following")
        == 48 / 100
    )
    (row,) = rate_table(ours).splitlines()[2:]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:8] == ["0.0001", "2", "0.4000", "1.50", "0.300", "0.200", "0.480", "0.600"]
    assert cells[8].startswith(f"{(1.2 * 2.4) ** 0.5:.3f} (")
    (alone,) = rate_table(dict(list(ours.items())[:1])).splitlines()[2:]
    assert "| 1.200 (one run) |" in alone
    assert cells[10] == "; ".join(["unknown trained, unknown rested, drafts that served: 3"] * 2)


def test_the_gate_s_odds_are_of_blocks_of_whole_prompts_and_go_on_over_steps() -> None:
    names = ["a", "b", "b", "a", "c", "d"]
    pairs = {step: [gaining(0.1, name + str(step)) for name in names] for step in (1, 2)}
    by_hand, expected = PrequentialTest(PrequentialRules()), []
    for step in (1, 2):
        for half in ("ab", "cd"):
            by_hand.observe([pair for pair in pairs[step] if pair.prompt[0] in half])
        expected.append(by_hand.verdict().odds)
    assert list(gate.odds_by_step(pairs).values()) == expected
    assert expected[1] > expected[0] > 1.0


def test_the_shared_variance_is_the_one_that_was_drawn() -> None:
    rng = np.random.default_rng(0)
    own = rng.normal(size=(600, 8)) * np.sqrt(0.7)
    common = rng.normal(size=(600, 1)) * np.sqrt(0.3)
    block = [gaining(gain, str(prompt)) for prompt, gains in enumerate(0.1 * (own + common)) for gain in gains]
    assert gate.shared_variance({0: block}) == pytest.approx(0.3, abs=0.04)
    assert gate.shared_variance({0: [gaining(0.1, str(number)) for number in range(9)]}) is None
    shown = steps_table([step(1, 1)])
    assert "| 0 | 0.1000 | 1.50 | 0.020 | 0.200 | 0.020 | 0.600 | 2.5 |" in shown
    assert shown.endswith("share of the variance of their gains: 20%")


def test_every_arm_has_its_draft_of_a_step(run: RecordedRun) -> None:
    arms = {arm.name: arm for arm in seconds.arms_at(run, 0)}
    assert list(arms) == ["no-speculation", "zero-update", "adapted-once", "following", "following-paced"]
    assert arms["no-speculation"].draft is None
    assert arms["zero-update"].draft == run.draft(0)
    assert [name for name, arm in arms.items() if arm.is_paced] == ["following-paced"]
    assert not any(arm.is_captured for arm in arms.values())
    assert arms["following-paced"].draft == arms["following"].draft is not None


def test_arms_are_asked_in_turn_and_the_first_answers_do_not_count() -> None:
    asked: list[tuple[str, int]] = []

    def asking(name: str) -> Callable[[int], dict[str, float]]:
        return lambda answers: asked.append((name, answers)) or {"tokens": float(len(asked))}

    found = seconds.in_turns({name: asking(name) for name in "abc"}, random.Random(1))
    assert asked[:3] == [("a", 1), ("b", 1), ("c", 1)]
    turns = [asked[i : i + 3] for i in range(3, len(asked), 3)]
    assert [sorted(turn) for turn in turns] == [[("a", 4), ("b", 4), ("c", 4)]] * seconds.REPEATS
    assert len({tuple(turn) for turn in turns}) > 1
    for name, figures in found.items():
        assert [each["tokens"] for each in figures] == [i for i, ask in enumerate(asked, 1) if ask == (name, 4)]


def test_a_few_answers_are_long() -> None:
    prompts = [[number] for number in range(8)]
    asked = seconds.prompts_by_length(prompts, 4)
    assert asked[240] == [[0], [1], [2]]
    assert sorted(asked[32]) == sorted([*prompts * 3, *prompts[3:]])
    assert seconds.prompts_by_length(prompts[:1], 1) == {240: [[0]]}


def test_seconds_are_medians_beside_ratios_of_turns() -> None:
    plain = [{"seconds": each, "tail_seconds": 0.5, "tokens": 100.0} for each in (9.0, 10.0, 20.0)]
    fast = [one | {"seconds": one["seconds"] / 2, "accept_length": 1.5} for one in plain]
    rows = seconds_table({"4": {"no-speculation": plain, "following": fast}}).splitlines()[2:]
    assert rows[0] == "| 4 | no-speculation | 10.0 | 0.50 | 1 (no drafts) | 1 |"
    assert rows[1] == "| 4 | following | 5.0 | 0.50 | 1.500 | 2.000 (2.000 .. 2.000) |"


def test_the_wide_part_is_what_the_tail_leaves_of_a_turn() -> None:
    plain = [{"seconds": each, "tail_seconds": 4.0, "tokens": 100.0} for each in (8.0, 12.0)]
    drafting = [{"seconds": 10.0, "tail_seconds": 2.0, "tokens": 50.0}] * 2
    rows = parts_table({"0": {"no-speculation": plain[:1], "following": drafting[:1]},
                        "7": {"no-speculation": plain[1:], "following": drafting[1:]}}).splitlines()[2:]  # fmt: skip
    (name, speed, wide, tail) = (cell.strip() for cell in rows[0].strip("|").split("|"))
    assert (len(rows), name) == (1, "following")
    assert [cell.split()[0] for cell in (speed, wide, tail)] == ["0.490", "1.414", "0.500"]


def test_runs_come_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rollouts", "--seeds", "2", "--steps", "5"])
    plans = rollouts.plans(rollouts.parse())
    assert [(plan.learning_rate, plan.seed, plan.steps) for plan in plans] == [
        (rate, seed, 5) for seed in range(2) for rate in (1e-6, 1e-5, 1e-4)
    ]
    monkeypatch.setattr(sys, "argv", ["rollouts", "--quick"])
    assert rollouts.plans(rollouts.parse()) == [
        RunPlan(learning_rate=1e-4, seed=0, steps=4, temperature=0.5, taught_at=0.0)
    ]
