"""Baselines as the bench trains on them: each learns, REINFORCE scores verdicts, and a reference is never trained."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from paceline.benchmarks.learning.training.labels import labelled_batch, tempered_probs
from paceline.benchmarks.learning.training.plan import BenchPlan
from paceline.benchmarks.learning.training.scoring import score_all
from paceline.benchmarks.learning.training.served_rounds import collate_rounds
from paceline.benchmarks.learning.training.trainer import BenchTrainer
from paceline.benchmarks.learning.training.verdicts import collate_verdicts
from paceline.buffer.errors import ConfigError
from paceline.buffer.trace import Sampling, VerdictRule
from paceline.learner.training.batch import collate, teacher_nodes
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.policies.objectives.baselines.names import Baseline
from paceline.policies.objectives.baselines.reinforce import reinforce_losses
from paceline.policies.objectives.baselines.table import BENCH_OBJECTIVES
from paceline.policies.objectives.names import Objective, Weighting
from training import are_equal, training_traces, weights_of

CPU = torch.device("cpu")
WITH_REFERENCE = [name for name, spec in BENCH_OBJECTIVES.items() if spec.needs_reference]


@pytest.fixture
def make_traces(make_trace):
    return partial(training_traces, make_trace)


def sampled_traces(make_traces, **changes):
    """Traces of both rules at temperature 0.7 and of a greedy request, with a teacher."""
    sampling = Sampling(temperature=0.7)
    rules = (VerdictRule.TARGET_ONLY, VerdictRule.REJECTION)
    sampled = [make_traces([s], sampling=sampling, verdict_rule=rules[s % 2], **changes)[0] for s in range(5)]
    return [*sampled, *make_traces([9], **changes)]


def loss_of(draft, traces, objective: str, reference, steps: int = 3) -> float:
    batch = labelled_batch(traces, draft, BENCH_OBJECTIVES[objective])
    found = {"verdicts": collate_verdicts(traces, CPU), "rounds": collate_rounds(traces, CPU, steps)}
    return score_all(draft, batch, steps, Weighting.GEOMETRIC, objective, reference=reference, **found).loss.item()


@pytest.mark.parametrize("weighting", [None, *Weighting])
@pytest.mark.parametrize("objective", BENCH_OBJECTIVES)
def test_a_short_fit_improves_its_own_loss(make_traces, make_draft, objective, weighting):
    traces, frozen = sampled_traces(make_traces, rounds=5), make_draft(1)
    plan = BenchPlan(passes=4, batch_traces=6, objective=objective, weighting=weighting)
    trainer = BenchTrainer(make_draft(1), plan, make_draft(2) if objective == Baseline.SELECTIVE else None)
    reference = make_draft(2) if objective == Baseline.SELECTIVE else frozen
    before = loss_of(trainer.draft, traces, objective, reference)
    report = trainer.fit(traces, [])
    assert (report.steps, report.skipped_steps) == (4, 0)
    assert loss_of(trainer.draft, traces, objective, reference) < before - 1e-3


@pytest.mark.parametrize("objective", list(Objective))
def test_a_plan_without_changes_trains_bit_by_bit_as_production_does(make_traces, make_draft, objective):
    fresh, replay = sampled_traces(make_traces), make_traces(range(20, 26))
    product = DraftTrainer(make_draft(1), TrainingPlan(steps=4, objective=objective, seed=3))
    bench = BenchTrainer(make_draft(1), BenchPlan(steps=4, objective=objective, seed=3))
    reports = [trainer.fit(fresh, replay) for trainer in (product, bench)]
    assert reports[0].losses == reports[1].losses
    assert are_equal(weights_of(product.draft), weights_of(bench.draft))


def reinforced(draft, traces, steps: int, reference=None):
    """The scores of REINFORCE; none of the weightings changes them."""
    batch, verdicts = collate(traces, CPU), collate_verdicts(traces, CPU)
    return score_all(
        draft, batch, steps, Weighting.GEOMETRIC, Baseline.REINFORCE, reference=reference, verdicts=verdicts
    )


def test_reinforce_scores_the_judged_proposals_of_served_rounds_one_by_one(make_traces, make_draft, naive_draft):
    draft, old, steps = make_draft(2), make_draft(3), 3
    traces = [*make_traces([1], rounds=3), *make_traces([2], rounds=2, context_len=5)]
    logq, logq_old, judged, accepted_flags = [], [], [], []
    for trace in traces:
        rounds = trace.rounds
        for root, proposed, accepted in zip(rounds.starts, rounds.drafted, rounds.accepted, strict=True):
            reach = min(int(accepted) + 1, steps, len(trace.tokens) - 1 - int(root))
            rows = []
            for model in (draft, old):
                _, logits = naive_draft(model, trace.tokens, trace.features, int(root), reach, fed=proposed)
                said = [x - x.max() - np.log(np.exp(x - x.max()).sum()) for x in logits]
                rows.append([said[i][proposed[i]] for i in range(reach)] + [0.0] * (steps - reach))
            logq.append(rows[0])
            logq_old.append(rows[1])
            judged.append([i < reach for i in range(steps)])
            accepted_flags.append([i < min(accepted, reach) for i in range(steps)])
    tensors = (torch.tensor(logq), torch.tensor(logq_old), torch.tensor(judged), torch.tensor(accepted_flags))
    scores = reinforced(draft, traces, steps, reference=old)
    assert scores.loss.item() == pytest.approx(reinforce_losses(*tensors).mean().item(), rel=1e-4)
    accepted_S = np.array(accepted_flags).sum(0) / np.maximum(np.array(judged).sum(0), 1)
    assert scores.acceptance_S.tolist() == pytest.approx(accepted_S.tolist())


def test_a_proposal_outside_the_draft_vocabulary_ends_the_round_and_is_counted(make_traces, make_draft):
    trace = next(t for t in make_traces(range(40), rounds=1) if t.rounds.accepted[0] == 3)
    known = [i for i in range(50) if i != trace.rounds.drafted[0, 1]]
    scores = reinforced(make_draft(1, draft_ids=known), [trace], 3)
    assert scores.acceptance_S.tolist() == [1.0, 0.0, 0.0]
    assert scores.out_of_vocabulary_labels == 1


@pytest.mark.parametrize("steps", [2, 5])
def test_reinforce_looks_no_further_than_the_shorter_of_chain_and_plan(make_traces, make_draft, steps):
    trace = next(t for t in make_traces(range(40), rounds=2) if t.rounds.accepted[0] == 3)
    scores = reinforced(make_draft(1), [trace], steps)
    assert (scores.acceptance_S > 0).tolist()[:2] == [True, True]
    assert not scores.acceptance_S[3:].any()


def test_what_an_objective_lacks_is_asked_for(make_traces, make_draft):
    draft, batch = make_draft(1), collate(make_traces([1]), CPU)
    with pytest.raises(ConfigError, match="objective reinforce: got no verdicts"):
        score_all(draft, batch, 3, Weighting.GEOMETRIC, Baseline.REINFORCE)
    for objective in (Baseline.SELECTIVE, Baseline.GROUP_TREE):
        with pytest.raises(ConfigError, match=f"{objective}: got no reference"):
            score_all(draft, batch, 3, Weighting.GEOMETRIC, objective)


@pytest.mark.parametrize("objective", WITH_REFERENCE)
def test_a_reference_is_compared_with_and_not_trained(make_traces, make_draft, objective):
    # Five tokens: a random draft has to be right now and then for GTO to find a chain.
    traces, plan = sampled_traces(make_traces, vocab=5), BenchPlan(passes=1, objective=objective)
    compared = make_draft(2, vocab=5)
    trainer, alone = BenchTrainer(make_draft(1, vocab=5), plan, compared), BenchTrainer(make_draft(1, vocab=5), plan)
    before = weights_of(compared)
    for each in (trainer, alone):
        each.fit(traces, [])
    assert are_equal(before, weights_of(compared))
    assert are_equal(before, weights_of(trainer._reference))
    assert not are_equal(weights_of(trainer.draft), weights_of(alone.draft))


def test_a_frozen_copy_shares_the_targets_embedding(make_draft):
    trainer = BenchTrainer(make_draft(1), BenchPlan(objective="group_tree"))
    assert trainer._reference.embedding_WH is trainer.draft.embedding_WH
    assert trainer._reference.fc.weight is not trainer.draft.fc.weight
    assert not any(parameter.requires_grad for parameter in trainer._reference.parameters())


def test_reinforce_without_a_proposer_compares_with_the_draft_at_the_start_of_each_fit(make_traces, make_draft):
    trainer = BenchTrainer(make_draft(1), BenchPlan(passes=1, objective="reinforce"))
    for seed in (1, 2):
        before = weights_of(trainer.draft)
        trainer.fit(make_traces([seed]), [])
        assert are_equal(before, weights_of(trainer._reference))


def test_adaspec_without_a_reference_compares_with_a_draft_that_learned_the_same_traces_by_forward_kl(
    make_traces, make_draft, monkeypatch
):
    clock = itertools.count()  # a fit looks at it when it begins and when it ends
    monkeypatch.setattr("paceline.learner.training.trainer.time.perf_counter", lambda: next(clock))
    plan = BenchPlan(passes=2, objective=Baseline.SELECTIVE)
    trainer = BenchTrainer(make_draft(1), plan)
    distilled = BenchTrainer(make_draft(1), replace(plan, objective=Objective.SOFT))
    for seeds in (range(5), range(5, 9)):
        traces, replayed = sampled_traces(make_traces), make_traces(seeds)
        report, alone = trainer.fit(traces, replayed), distilled.fit(traces, replayed)
        assert are_equal(weights_of(trainer._reference), weights_of(distilled.draft))
        assert (report.steps, report.seconds) == (alone.steps, 2 * alone.seconds)
    assert not are_equal(weights_of(trainer.draft), weights_of(distilled.draft))
    assert trainer.draft.embedding_WH is trainer._reference.embedding_WH


@pytest.mark.parametrize(
    "bad",
    [
        {"objective": "rl"},
        {"weighting": "even"},
        {"off_path_weight": -1.0},
        {"off_path_weight": math.nan},
        {"recency_half_life_traces": math.inf},
        {"replay_errors": -0.5},
        {"teacher_temperature": 0.0},
        {"teacher_temperature": math.nan},
        {"passes": 0},
        {"batch_traces": 0},
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError, match=f"(?s)(?=.*got.*{value}.*expected).*{name}"):
        BenchPlan(**bad)


def test_auroras_teacher_is_at_temperature_one_for_every_request(make_trace, make_draft):
    trace, draft, spec = make_trace(3, top_k=4), make_draft(1), BENCH_OBJECTIVES[Baseline.FORWARD_KL_ACCEPTED]
    batch, nodes = labelled_batch([trace], draft, spec), teacher_nodes(trace)
    for position in np.flatnonzero(nodes >= 0):
        weights = np.exp(trace.rounds.teacher_logprobs[nodes[position] // 4, nodes[position] % 4].astype(float))
        got = batch.teacher_probs_BTK[0, position].tolist()
        assert got == pytest.approx((weights / weights.sum()).tolist(), rel=1e-5)
    warm = replace(trace, sampling=Sampling(temperature=0.3, top_k=2, top_p=0.5))
    assert torch.equal(labelled_batch([warm], draft, spec).teacher_probs_BTK, batch.teacher_probs_BTK)


def test_auroras_positions_are_those_whose_best_token_the_draft_vocabulary_holds(make_trace, make_draft):
    trace, draft = make_trace(3, top_k=4), make_draft(1, draft_ids=list(range(0, 50, 2)))
    batch = labelled_batch([trace], draft, BENCH_OBJECTIVES[Baseline.FORWARD_KL_ACCEPTED])
    kept = (batch.teacher_probs_BTK[0].sum(1) > 0).tolist()
    assert kept == [int(token) % 2 == 0 for token in batch.teacher_ids_BTK[0, :, 0]]
    assert 0 < sum(kept) < len(kept)


@pytest.mark.parametrize("temperature", [0.01, 0.5, 1.0, 3.0])
def test_a_tempered_teacher_is_the_power_of_each_probability_renormalised(temperature):
    rows = [[0.5, 0.3, 0.2, 0.0], [1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    for row, got in zip(rows, tempered_probs(torch.tensor(rows), temperature).tolist(), strict=True):
        powers = [p ** (1.0 / temperature) for p in row]
        assert got == pytest.approx([power / sum(powers) for power in powers], rel=1e-4, abs=1e-9)


def test_a_teacher_is_sharpened_on_top_of_the_requests_own_sampling_and_a_hard_label_stays(make_trace, make_draft):
    warm = make_trace(2, top_k=4, sampling=Sampling(temperature=0.5, top_k=3))
    traces, nodes, spec = [warm, make_trace(3)], teacher_nodes(warm), BENCH_OBJECTIVES[Objective.SOFT]
    batch = labelled_batch(traces, make_draft(1), spec, 0.25)
    for position in np.flatnonzero(nodes >= 0):
        logprobs = warm.rounds.teacher_logprobs[nodes[position] // 4, nodes[position] % 4, :3].astype(float)
        weights = np.exp((logprobs - logprobs[0]) / 0.5 / 0.25)
        expected = [*(weights / weights.sum()).tolist(), 0.0]
        assert batch.teacher_probs_BTK[0, position].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert batch.teacher_probs_BTK[1].tolist() == collate(traces, CPU, soft=True).teacher_probs_BTK[1].tolist()


def test_verdicts_are_at_the_rows_that_served_rounds_started_from(make_trace):
    traces = [
        make_trace(1, rounds=2, steps=2),
        make_trace(2, rounds=4, context_len=5, verdict_rule=VerdictRule.REJECTION),
    ]
    batch, verdicts = collate(traces, CPU), collate_verdicts(traces, CPU)
    for b, trace in enumerate(traces):
        served = {int(start) - 1: r for r, start in enumerate(trace.rounds.starts)}
        for q, row in enumerate(batch.rows_BQ[b].tolist()):
            known = served.get(row) if batch.row_mask_BQ[b, q] else None
            proposed = [] if known is None else trace.rounds.drafted[known].tolist()
            assert verdicts.proposed_BQP[b, q].tolist() == proposed + [-1] * (3 - len(proposed))
            assert verdicts.accepted_BQ[b, q] == (-1 if known is None else trace.rounds.accepted[known])
