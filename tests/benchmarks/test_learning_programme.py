"""What the learning bench compares and in which order: rows, stages, jobs and tuned rates; and Aurora's loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from paceline.benchmarks.learning import aurora, programme
from paceline.benchmarks.learning.programme import CHAT, FULL, Setting
from paceline.buffer.errors import ConfigError
from paceline.buffer.stream.trace import Sampling
from paceline.learner.training.plan import RECIPE, TrainingPlan
from paceline.rig.chat.streams import STREAMS

ALL_ROWS = [row for stage in programme.STAGES for row in stage.rows]


def every_rate(grid_of):
    return {job.rate_key: 0.002 for job in grid_of.tuning_jobs()}


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.name)
def test_a_row_trains_as_the_product_but_for_what_it_changes(row):
    assert row.training_plan(7, 3) == replace(TrainingPlan(steps=7, seed=3), **row.plan)
    assert row.training_recipe(None) == replace(RECIPE, **row.recipe)
    tuned = row.training_recipe(0.002)
    assert (tuned.cold_learning_rate, tuned.warm_learning_rate) == (0.002, 0.002)


def test_a_row_that_names_no_field_or_a_wrong_number_is_refused():
    with pytest.raises(TypeError):
        programme.Row(name="typing error", plan={"passess": 2}).training_plan(5, 0)
    with pytest.raises(ConfigError):
        programme.Row(name="no passes", plan={"passes": 0}).training_plan(5, 0)


def test_a_name_stands_for_one_row_wherever_it_is_compared():
    for row in ALL_ROWS:
        assert [other for other in ALL_ROWS if other.name == row.name and other != row] == []
    assert len({stage.name for stage in programme.STAGES}) == len(programme.STAGES)


def test_a_run_that_several_stages_ask_for_is_made_once_and_the_main_claims_come_first():
    jobs = list(FULL.jobs(every_rate(FULL)))
    assert len({job.key for job in jobs}) == len(jobs)
    assert {job.key for job in jobs} == {job.key for stage in FULL.stages for job in stage.jobs()}
    first = FULL.stages[0]
    of_main = len(first.rows) * first.seeds * len(first.settings) * len(first.starts)
    assert [job.seed for job in jobs[:of_main]] == sorted(job.seed for job in jobs[:of_main])
    assert {job.row for job in jobs[:of_main]} == set(first.rows)


def test_rows_without_a_rate_are_left_out_and_others_need_none():
    main = FULL.of(["main"])
    without = {job.row.name for job in main.jobs({})}
    assert without == {programme.PRODUCT.name, programme.DEFAULT_ONCE.name, programme.UNTRAINED.name}
    found = [job for job in main.jobs({(programme.AURORA.name, "t0.7", "warm"): 0.004}) if job.row.is_aurora]
    assert {(job.setting.name, job.start, job.rate) for job in found} == {("t0.7-k5", "warm", 0.004)}


def test_a_chat_model_shifts_to_every_stream_and_the_one_for_judging_tunes_nothing():
    streams, _, recipe = CHAT.stages
    assert sorted(streams.shifts) == sorted(STREAMS)
    found = [(job.shifted, job.row.name) for job in streams.jobs() if job.seed == 1]
    assert found == [(shifted, row.name) for shifted in streams.shifts for row in streams.rows]
    assert "json" not in recipe.shifts
    jobs = list(CHAT.jobs(every_rate(CHAT)))
    assert len({job.key for job in jobs}) == len(jobs)
    assert {job.key for job in jobs} == {job.key for stage in CHAT.stages for job in stage.jobs()}
    assert CHAT.warm_shifts == streams.shifts
    narrowed = CHAT.of(["streams"]).shifting_to(["json"])
    assert ({job.shifted for job in narrowed.jobs({})}, narrowed.warm_shifts) == ({"json"}, ("json",))
    assert CHAT.per_domain(len(STREAMS)) <= 80  # talk has no more


def test_rates_are_tuned_once_per_row_traffic_and_start_at_one_draft_length():
    main = FULL.of(["main"]).at((Setting(0.7, 3), Setting(0.7, 5)))
    jobs = [job for job in main.tuning_jobs() if job.row == programme.AURORA]
    assert all(job.tuning for job in jobs)
    expected = [("t0.7-k5", start, rate) for start in programme.STARTS for rate in FULL.grid[start]]
    assert sorted((job.setting.name, job.start, job.rate) for job in jobs) == sorted(expected)


def test_stages_and_settings_are_chosen_by_name():
    assert [stage.name for stage in FULL.of(["cadence", "main"]).stages] == ["main", "cadence"]
    with pytest.raises(SystemExit, match="got \\['mian'\\], expected some of \\['main'"):
        FULL.of(["mian"])
    every = [*FULL.settings, Setting(0.0, 10)]
    assert [Setting.named(each.name) for each in every] == every
    for wrong in ("tepid-k5", "t0.7-block-k5", "t0-rejection-k5"):
        with pytest.raises(ValueError, match=r"got|could not convert"):
            Setting.named(wrong)


def test_auroras_loss_is_a_mean_of_its_own_at_every_draft_step(make_trace, make_draft, naive_draft):
    traces = [
        make_trace(seed, feature_dim=48, rounds=3, context_len=3, sampling=Sampling(temperature=0.7)) for seed in (1, 2)
    ]
    draft = make_draft(2, draft_ids=list(range(0, 50, 2)))
    steps = 3
    losses = {step: [] for step in range(steps)}
    for trace in traces:
        judged = {}
        for start, kept, ids, logprobs in zip(
            trace.rounds.starts, trace.rounds.accepted, trace.rounds.teacher_ids, trace.rounds.teacher_logprobs,
            strict=True,
        ):  # fmt: skip
            for node in range(kept + 1):
                judged[int(start) + 1 + node] = (ids[node], logprobs[node].astype(np.float64))
        for row in range(trace.context_len - 2, min(len(trace.features), len(trace.tokens) - 2)):
            _, logits_SV = naive_draft(
                draft, trace.tokens, trace.features, row + 1, steps, fed=[*trace.tokens[row + 2 :], *[0] * steps]
            )
            for step in range(min(steps, len(trace.tokens) - row - 2)):
                at = row + 2 + step
                ids_K, logprobs_K = judged.get(at, ((trace.tokens[at],), (0.0,)))  # else the committed token
                known = [(i, lp) for i, lp in zip(ids_K, logprobs_K, strict=True) if i % 2 == 0]
                if ids_K[0] % 2:
                    continue  # its best token is outside the draft's vocabulary
                weights = np.exp([lp for _, lp in known])
                logits_V = logits_SV[step]
                logq_V = logits_V - np.log(np.exp(logits_V).sum())
                said = [logq_V[i // 2] for i, _ in known]
                losses[step].append(-float((weights / weights.sum() * said).sum()))
    expected = sum(0.8**step * np.mean(found) for step, found in losses.items() if found)
    got = aurora.aurora_loss(draft, traces, steps)
    assert got.item() == pytest.approx(expected, rel=1e-4)
    got.backward()
    assert all(torch.isfinite(weight.grad).all() for weight in draft.parameters() if weight.grad is not None)
