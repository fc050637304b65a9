"""What the learning bench compares and in which order: rows, stages, jobs, tuned rates, and what they cost."""

from dataclasses import asdict, fields, replace

import pytest
import torch
from paceline.benchmarks.learning import cost, programme, rows, setting, stream
from paceline.benchmarks.learning.training.plan import BenchPlan
from paceline.buffer.errors import ConfigError
from paceline.learner.training.batch_sampling import draw_batches
from paceline.learner.training.plan import RECIPE, TrainingPlan

FULL, QUICK = programme.FULL, programme.QUICK
ABLATIONS = [
    stage
    for stage in FULL.stages
    if stage.name not in {"main", "system", "labels", "objectives", "objectives-sampled", "rejection"}
]
ALL_ROWS = [row for stage in programme.STAGES for row in stage.rows]


def changed(row, other):
    """Fields of the plan, and what is no part of it, in which two rows differ."""
    plans = [asdict(each.plan(5, 0)) | {"cadence": each.cadence, "top_k": each.top_k} for each in (row, other)]
    return {name for name in plans[0] if plans[0][name] != plans[1][name]}


def every_rate(grid_of):
    return {job.rate_key: 0.002 for job in grid_of.tuning_jobs({})}


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.name)
def test_a_plan_is_the_product_s_but_for_what_its_row_changes(row):
    plan, default = row.plan(7, 3), replace(BenchPlan(), steps=7, seed=3)
    assert {f.name: getattr(plan, f.name) for f in fields(plan)} == asdict(default) | dict(row.changes)


def test_a_tuned_rate_is_that_of_cold_and_of_warm_drafts():
    plan = rows.COMMITTED.plan(5, 0, 0.002)
    assert (plan.cold_learning_rate, plan.warm_learning_rate) == (0.002, 0.002)
    assert rows.PRODUCT.plan(5, 0) == BenchPlan(steps=5)
    assert (rows.PRODUCT.plan(5, 0).product, rows.PRODUCT.plan(5, 0).recipe) == (TrainingPlan(steps=5), RECIPE)


def test_a_row_that_names_no_field_or_a_wrong_number_is_refused():
    with pytest.raises(TypeError):
        rows.PRODUCT.but("typing error", passess=2).plan(5, 0)
    with pytest.raises(ConfigError):
        rows.PRODUCT.but("no passes", passes=0).plan(5, 0)


def test_objective_and_system_are_compared_apart():
    schedule = set(rows.ONCE)
    assert changed(rows.AURORA, rows.AURORA_AS_PRODUCT) <= schedule
    assert changed(rows.PRODUCT, rows.DEFAULT_ONCE) <= schedule
    assert not changed(rows.PRODUCT, rows.AURORA_AS_PRODUCT) & schedule
    assert not changed(rows.AURORA, rows.DEFAULT_ONCE) & schedule
    assert "objective" in changed(rows.PRODUCT, rows.AURORA_AS_PRODUCT) & changed(rows.AURORA, rows.DEFAULT_ONCE)


def test_plain_rows_differ_in_their_objective_alone():
    for row in (rows.AURORA, rows.SOFT, rows.MATCHED, *rows.OTHERS):
        assert changed(row, rows.COMMITTED) == {"objective"}
        assert (row.plan(5, 0).passes, row.plan(5, 0).replay_share) == (1, 0.0)


#: Stage -> what its rows may change against its first one.
VARIED = {
    "off-path": {"off_path_weight"},
    "aurora-rates": {"cold_learning_rate", "warm_learning_rate"},
    "batch": {"batch_traces"},
    "sharpened": {"objective", "teacher_temperature"},
    "replay": {"replay_share", "recency_half_life_traces", "replay_errors"},
    "weighting": {"weighting", "cold_below"},
    "top-k": {"top_k", "objective"},
    "teacher": {"teacher_temperature"},
    "passes": {"passes"},
    "cadence": {"cadence"},
    "warm-rate": {"warm_learning_rate"},
    "optimiser": {"matrix_rate", "passes"},
    "annealing": {"rate_half_life_steps"},
}


@pytest.mark.parametrize("stage", ABLATIONS, ids=lambda stage: stage.name)
def test_an_ablation_varies_what_it_is_named_after_and_has_three_seeds(stage):
    differences = [changed(row, stage.rows[0]) for row in stage.rows[1:]]
    assert all(differences)
    assert set().union(*differences) == VARIED[stage.name]
    assert stage.seeds == 3
    assert len(stage.settings) == 1 or stage.name == "off-path"


def test_a_name_stands_for_one_row_wherever_it_is_compared():
    for row in ALL_ROWS:
        assert {row} == {other for other in ALL_ROWS if other.name == row.name}
    assert len({stage.name for stage in programme.STAGES}) == len(programme.STAGES)


def test_the_main_claims_come_first_with_five_seeds():
    first = FULL.stages[0]
    assert (first.name, first.seeds, first.rows[0]) == ("main", 5, rows.AURORA)
    jobs = list(FULL.jobs(every_rate(FULL)))
    main = [job for job in jobs if job.row in first.rows and job.sizes == first.sizes and job.seed < 5]
    of_main = len(first.rows) * 5 * len(first.settings) * len(first.starts)
    assert main[:of_main] == jobs[:of_main]
    assert [job.seed for job in jobs[:of_main]] == sorted(job.seed for job in jobs[:of_main])


def test_a_run_that_several_stages_ask_for_is_made_once():
    jobs = list(FULL.jobs(every_rate(FULL)))
    assert len({job.key for job in jobs}) == len(jobs)
    asked = {job.key for stage in FULL.stages for job in stage.jobs()}
    assert {job.key for job in jobs} == asked
    both = [job for job in FULL.of(["main", "system"]).jobs(every_rate(FULL)) if job.row == rows.PRODUCT]
    assert both == [job for job in FULL.of(["main"]).jobs(every_rate(FULL)) if job.row == rows.PRODUCT]


def test_rows_without_a_rate_are_left_out_and_others_need_none():
    names = {job.row.name for job in FULL.of(["main"]).jobs({})}
    assert names == {rows.PRODUCT.name, rows.UNTRAINED.name}
    only = {(rows.AURORA.objective, "t0.7", "warm"): 0.004}
    found = [job for job in FULL.of(["main"]).jobs(only) if job.row == rows.AURORA]
    assert {(job.setting.name, job.start, job.rate) for job in found} == {("t0.7-k5", "warm", 0.004)}


def test_stages_are_chosen_by_name_in_the_order_of_the_programme():
    assert [stage.name for stage in FULL.of(["passes", "main", "passes"]).stages] == ["main", "passes"]
    with pytest.raises(SystemExit, match="got \\['mian'\\], expected some of \\['main'"):
        FULL.of(["mian"])


def test_rows_are_chosen_by_name_beside_the_ones_they_are_compared_with():
    chosen = FULL.of(["objectives", "objectives-sampled", "batch"]).with_rows(["selective", "soft"])
    assert {stage.name: [row.name for row in stage.rows] for stage in chosen.stages} == {
        "objectives": [rows.AURORA.name, "selective"],
        "objectives-sampled": [rows.AURORA.name, "soft", "selective"],
    }
    with pytest.raises(SystemExit, match="--row: got \\['selctive'\\], expected some of \\['Aurora"):
        FULL.with_rows(["selctive"])


def test_a_part_may_begin_from_one_head_alone():
    chosen = FULL.of(["batch", "cadence", "replay"]).begun("warm")
    assert [(stage.name, stage.starts) for stage in chosen.stages] == [("batch", ("warm",)), ("replay", ("warm",))]


def test_rates_are_tuned_once_per_objective_temperature_and_start_at_one_draft_length():
    jobs = list(FULL.of(["off-path"]).tuning_jobs({}))
    tuned = [(job.row.objective, job.setting.name, job.start, job.rate) for job in jobs]
    assert tuned == [("committed", name, "warm", rate) for name in ("t0-k5", "t0.7-k5") for rate in FULL.grid["warm"]]
    assert all(job.tuning and job.row == rows.plain("committed", "committed") for job in jobs)
    assert setting.Setting(0.0, 5) in FULL.of(["off-path"]).at((setting.Setting(0.0, 3),)).settings


def test_known_rates_are_not_tuned_again():
    known = {("committed", "t0", "warm"): 0.001}
    assert {job.setting.temperature for job in FULL.of(["off-path"]).tuning_jobs(known)} == {0.7}
    assert list(FULL.tuning_jobs(every_rate(FULL))) == []


def test_aurora_s_loss_under_the_product_s_schedule_is_tuned_under_that_schedule():
    jobs = [job for job in FULL.of(["system"]).tuning_jobs({}) if job.start == "cold" and not job.setting.temperature]
    assert [(job.row, job.rate) for job in jobs] == [(rows.AURORA_AS_PRODUCT, rate) for rate in FULL.grid["cold"]]


def test_settings_by_name():
    every = [*setting.SETTINGS, setting.Setting(0.7, 5, rejection=True)]
    assert [setting.Setting.named(each.name) for each in every] == every
    assert every[-1].name == "t0.7-rejection-k5"
    for wrong, why in {
        "tepid-k5": "could not convert",
        "t0.7-block-k5": "verdict rule: got 'block', expected 'rejection' or none",
        "t0-rejection-k5": "got temperature 0",
    }.items():
        with pytest.raises(ValueError, match=why):
            setting.Setting.named(wrong)


def test_losses_on_the_overlap_are_compared_under_rejection_sampling_and_tuned_there():
    (stage,) = FULL.of(["rejection"]).stages
    assert {row.objective for row in stage.rows if row != rows.UNTRAINED} == {
        "soft", "rejection", "lk_mix", "tvd_plus_plus", "ce_l1", "forward_kl_accepted",
    }  # fmt: skip
    assert {(each.temperature, each.rejection) for each in stage.settings} == {(0.7, True)}
    tuned = {job.setting.name for job in FULL.of(["rejection"]).tuning_jobs({})}
    assert tuned == {"t0.7-rejection-k5"}
    sampled = every_rate(FULL.of(["objectives-sampled"]))  # under another rule: none of them is used
    assert {job.row for job in FULL.of(["rejection"]).jobs(sampled)} == {rows.UNTRAINED}


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("sizes", [(80, 60, 20), (33, 10, 8)])
def test_the_steps_of_a_run_are_counted_as_the_trainer_draws_them(row, sizes):
    # Numbers in place of traces: draws are even, so nothing reads what a trace holds.
    sizes, plan = stream.Sizes(*sizes), row.plan(5, 0)
    counted, replay_buffer = 0, []
    for chunk in stream.Stream(tuple(range(sum((sizes.before_shift, sizes.after_shift)))), sizes.before_shift).chunks(
        row.cadence or sizes.cadence
    ):
        replayed = replay_buffer if plan.replay_share else []
        random = torch.Generator().manual_seed(0)
        counted += sum(1 for _ in draw_batches(chunk, replayed, plan.passes, plan.recipe, random))
        replay_buffer = [*replay_buffer, *chunk]
    job = programme.Job(row, setting.Setting(0.0, 5), "cold", 0, sizes)
    assert cost.optimiser_steps(job) == (0 if row == rows.UNTRAINED else counted)


@pytest.mark.parametrize(("chosen", "limit"), [(FULL, 45.0), (QUICK, 5.0)], ids=["full", "quick"])
def test_a_programme_is_cut_to_its_time_on_two_cores(chosen, limit):
    jobs = [*chosen.tuning_jobs({}), *chosen.jobs(every_rate(chosen))]
    longest_s = max(cost.seconds([job]) for job in jobs)
    assert cost.seconds(jobs) / 2.0 / 60.0 < limit
    assert chosen.minutes + longest_s / 60.0 < limit


def test_enough_is_recorded_for_every_stream():
    assert FULL.per_domain(4) >= QUICK.per_domain(4)
    for stage in FULL.stages:
        assert FULL.per_domain(4) >= stream.needed_per_domain(4, stage.sizes, FULL.tuning_sizes)
