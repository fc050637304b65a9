"""The trainer: it learns, it repeats itself bit by bit, and it never applies a step that is not finite."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.buffer.trace import Sampling, VerdictRule
from paceline.learner.config import OBJECTIVES
from paceline.learner.judging.replay import replay_traces
from paceline.learner.training.batch import collate, verdict_rows
from paceline.learner.training.first_position import FirstPosition
from paceline.learner.training.scoring import score_batch
from paceline.learner.training.served_rounds import collate_rounds
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.policies.acceptance import Tally, replayed_tally
from paceline.policies.objectives.baselines.reinforce import reinforce_losses
from paceline.policies.objectives.losses import WITH_REFERENCE, Objective, Weighting

CPU = torch.device("cpu")


@pytest.fixture
def make_traces(make_trace):
    return lambda seeds, **changes: [
        make_trace(s, **{"feature_dim": 48, "rounds": 3, "context_len": 3} | changes) for s in seeds
    ]


def weights_of(draft) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in draft.state_dict().items()}


def are_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def replayed(draft, traces, steps: int) -> Tally:
    runs = replay_traces(draft, traces, steps)
    return sum((replayed_tally(t, r) for t, r in zip(traces, runs, strict=True)), Tally())


@pytest.mark.parametrize("objective", ["committed", "soft"])
def test_a_few_traces_are_learnt_by_heart(make_traces, make_draft, objective):
    draft, traces = make_draft(1, hidden=32), make_traces(range(4), feature_dim=96, rounds=5)
    assert replayed(draft, traces, 3).accept_length < 1.2
    trainer = DraftTrainer(draft, TrainingPlan(steps=3, passes=60, objective=objective, cold_learning_rate=1e-2))
    report = trainer.fit(traces, [])
    # Rounds at the end of a trace have fewer tokens to accept than steps, so the ceiling lies just below 4.
    assert replayed(draft, traces, 3).accept_length > 3.4
    assert report.losses[-1] < 0.05 * report.losses[0]
    assert report.steps == len(report.losses) == 60
    assert trainer.fit(traces, []).first_position_accept > 0.95


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("draft_ids", [None, list(range(0, 50, 2))])
def test_batch_loss_equals_rounds_decoded_one_by_one(make_traces, make_draft, naive_draft, weighting, draft_ids):
    draft, steps = make_draft(2, draft_ids=draft_ids), 3
    traces = [*make_traces([1], rounds=1), *make_traces([2], rounds=3, context_len=5)]
    to_draft = {int(t): d for d, t in enumerate(draft.draft_to_target_V)}
    total, rounds, unspeakable = 0.0, 0, 0
    for trace in traces:
        for root in verdict_rows(trace) + 1:
            rounds, survival = rounds + 1, 1.0
            behind = trace.tokens[root + 1 :]
            reach = min(steps, len(behind))
            _, logits = naive_draft(draft, trace.tokens, trace.features, int(root), reach, fed=behind)
            for step in range(reach):
                if int(behind[step]) not in to_draft:
                    unspeakable, survival = unspeakable + 1, 0.0
                    continue
                probs = np.exp(logits[step] - logits[step].max())
                accept = probs[to_draft[int(behind[step])]] / probs.sum()
                total -= math.log(accept) * (survival if weighting is Weighting.SURVIVAL else 0.8**step)
                survival *= accept
    scores = score_batch(draft, collate(traces, CPU), steps, weighting)
    assert scores.loss.item() == pytest.approx(total / rounds, rel=1e-4)
    assert scores.unspeakable_labels == unspeakable
    assert (unspeakable > 0) == (draft_ids is not None)


def test_a_teacher_that_is_sure_of_the_committed_token_trains_like_that_token(make_traces, make_draft):
    traces = make_traces([1, 2], top_k=1, sampling=Sampling(temperature=0.7))
    draft = make_draft(2, draft_ids=list(range(0, 50, 2)))
    for weighting in Weighting:
        hard = score_batch(draft, collate(traces, CPU), 3, weighting)
        soft = score_batch(draft, collate(traces, CPU, soft=True), 3, weighting)
        assert soft.loss.item() == pytest.approx(hard.loss.item(), rel=1e-5)
        assert soft.unspeakable_labels == hard.unspeakable_labels
        torch.testing.assert_close(soft.acceptance_S, hard.acceptance_S)


def test_a_trainer_continues_from_its_file_bit_by_bit(tmp_path, make_traces, make_draft):
    fresh, window, later = make_traces(range(5)), make_traces(range(10, 16)), make_traces(range(20, 24))
    plan = TrainingPlan(passes=2, batch_traces=2, cold_below=0.0)
    trainer = DraftTrainer(make_draft(1), plan)
    trainer.fit(fresh, window)
    trainer.save(tmp_path / "state.pt")
    other = make_draft(1)  # same target, so same embedding: a state does not hold it
    for parameter in other.parameters():
        torch.nn.init.ones_(parameter)
    resumed = DraftTrainer(other, plan)
    resumed.load(tmp_path / "state.pt")
    first, second = trainer.fit(later, window), resumed.fit(later, window)
    assert are_equal(weights_of(trainer.draft), weights_of(resumed.draft))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_a_state_of_another_draft_or_no_state_at_all_changes_nothing(tmp_path, make_traces, make_draft):
    DraftTrainer(make_draft(1, hidden=32), TrainingPlan()).save(tmp_path / "wide.pt")
    (tmp_path / "broken.pt").write_bytes(b"nothing")
    trainer = DraftTrainer(make_draft(1), TrainingPlan())
    before = weights_of(trainer.draft)
    for name in ("wide.pt", "broken.pt", "absent.pt"):
        with pytest.raises(ConfigError, match=name):
            trainer.load(tmp_path / name)
    assert are_equal(before, weights_of(trainer.draft))


def test_a_step_that_is_not_finite_is_counted_and_never_applied(make_traces, make_draft):
    good, bad = make_traces([1, 2, 3]), make_traces([4])[0]
    spoilt = bad.features.copy()
    spoilt[2, 5] = np.nan
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1, batch_traces=1))
    before = weights_of(trainer.draft)
    only_bad = trainer.fit([replace(bad, features=spoilt)], [])
    assert (only_bad.steps, only_bad.skipped_steps, only_bad.losses) == (0, 1, ())
    assert are_equal(before, weights_of(trainer.draft))
    mixed = trainer.fit([*good, replace(bad, features=spoilt)], [])
    assert (mixed.steps, mixed.skipped_steps) == (3, 1)
    assert all(math.isfinite(loss) for loss in mixed.losses)
    assert all(tensor.isfinite().all() for tensor in trainer.draft.state_dict().values())


def test_a_cold_draft_trains_on_survival_and_a_warm_one_on_every_position(make_traces, make_draft):
    traces = make_traces(range(3))
    cold = DraftTrainer(make_draft(1), TrainingPlan(cold_below=1.01)).fit(traces, [])
    warm = DraftTrainer(make_draft(1), TrainingPlan(cold_below=0.0)).fit(traces, [])
    assert (cold.weighting, cold.learning_rate) == ("survival", 5e-3)
    assert (warm.weighting, warm.learning_rate) == ("geometric", 5e-4)
    assert cold.first_position_accept == warm.first_position_accept


def test_the_regime_does_not_toggle_on_noise(make_draft):
    trainer = DraftTrainer(make_draft(1), TrainingPlan(cold_below=0.5))
    seen = []
    for accept in (0.1, 0.49, 0.5, 0.45, math.nan, 0.41, 0.39, 0.45, 0.6):
        trainer._choose_regime(accept)
        seen.append(str(trainer._weighting)[0])
    assert "".join(seen) == "ssggggssg"


def test_first_position_acceptance_is_measured_before_training(make_traces, make_draft, naive_draft):
    draft, traces = make_draft(3, vocab=5), make_traces(range(3), vocab=5)
    hits = [
        naive_draft(draft, trace.tokens, trace.features, int(row) + 1, 1)[0][0] == trace.tokens[row + 2]
        for trace in traces
        for row in verdict_rows(trace)
    ]
    fit = DraftTrainer(draft, TrainingPlan(passes=1)).fit(traces, [])
    assert (fit.first_position_accept, fit.first_position_attainable) == (pytest.approx(np.mean(hits)), 1.0)


@pytest.mark.parametrize(("attainable", "learning_rate"), [(1.0, 5e-3), (0.5, 5e-4)])
def test_uncertain_text_alone_does_not_make_a_draft_cold(
    make_traces, make_draft, monkeypatch, attainable, learning_rate
):
    monkeypatch.setattr("paceline.learner.training.trainer.first_position", lambda *_: FirstPosition(0.35, attainable))
    fit = DraftTrainer(make_draft(1), TrainingPlan(passes=1)).fit(make_traces(range(2)), [])
    assert fit.learning_rate == learning_rate


def test_the_learning_rate_warms_up_over_ten_applied_steps(make_traces, make_draft):
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1, batch_traces=1, cold_below=1.01))
    rates = []
    for trace in make_traces(range(12)):
        trainer.fit([trace], [])
        rates.append(trainer._optimiser.param_groups[0]["lr"])
    assert rates == pytest.approx([5e-3 * min(1.0, n / 10) for n in range(1, 13)])


def test_a_long_gradient_is_clipped_before_it_is_applied(make_traces, make_draft):
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1, grad_clip=1e-3))
    trainer.fit(make_traces(range(2)), [])
    norms = [parameter.grad.norm() ** 2 for parameter in trainer.draft.parameters()]
    assert float(sum(norms)) ** 0.5 == pytest.approx(1e-3, rel=1e-3)


def test_traces_that_cannot_be_drafted_from_are_counted_and_left_out(make_traces, make_draft):
    blind = make_traces([1, 2], feature_dim=0)
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1))
    mixed = trainer.fit([*blind, *make_traces([3])], blind)
    assert (mixed.steps, mixed.unusable_traces) == (1, 2)
    nothing = trainer.fit(blind, make_traces([3]))
    assert (nothing.steps, nothing.skipped_steps, nothing.unusable_traces) == (0, 0, 2)
    assert math.isnan(nothing.first_position_accept)


def test_labels_outside_the_draft_vocabulary_are_counted_and_a_batch_of_nothing_else_is_harmless(
    make_traces, make_draft
):
    traces = make_traces([1])
    absent = [i for i in range(50) if i not in traces[0].tokens][:5]
    trainer = DraftTrainer(make_draft(1, draft_ids=absent), TrainingPlan(passes=1, steps=2))
    report = trainer.fit(traces, [])
    rows = len(verdict_rows(traces[0]))
    assert report.unspeakable_labels == rows + (rows - 1)
    assert (report.losses, report.mean_acceptance) == ((0.0,), (0.0, 0.0))


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": 0},
        {"passes": 0},
        {"batch_traces": 0},
        {"replay_share": 1.0},
        {"objective": "rl"},
        {"weighting": "even"},
        {"kl_weight": -0.1},
        {"kl_weight": math.nan},
        {"off_path_weight": -1.0},
        {"recency_half_life_traces": math.inf},
        {"replay_errors": -0.5},
        {"kl_decay_steps": -1},
        {"teacher_temperature": 0.0},
        {"teacher_temperature": math.nan},
        {"ema_decay": 1.0},
        {"ema_decay": -0.1},
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError, match=f"(?s)(?=.*got.*{value}.*expected).*{name}"):
        TrainingPlan(**bad)


def test_training_under_bfloat16_keeps_float32_weights(make_traces, make_draft):
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=4, bfloat16=True))
    report = trainer.fit(make_traces(range(4)), [])
    assert report.losses[-1] < report.losses[0]
    assert {parameter.dtype for parameter in trainer.draft.parameters()} == {torch.float32}


def sampled_traces(make_traces, **changes):
    """Traces of both rules at temperature 0.7 and of a greedy request, with a teacher."""
    sampling = Sampling(temperature=0.7)
    rules = (VerdictRule.TARGET_ONLY, VerdictRule.REJECTION)
    sampled = [make_traces([s], sampling=sampling, verdict_rule=rules[s % 2], **changes)[0] for s in range(5)]
    return [*sampled, *make_traces([9], **changes)]


def loss_of(draft, traces, objective: Objective, reference, steps: int = 3) -> float:
    served = objective is not Objective.FORWARD_KL_ACCEPTED
    batch, rounds = collate(traces, CPU, soft=True, as_served=served, verdicts=True), collate_rounds(traces, CPU, steps)
    kwargs = {"reference": reference, "rounds": rounds}
    return score_batch(draft, batch, steps, Weighting.GEOMETRIC, objective, **kwargs).loss.item()


@pytest.mark.parametrize("weighting", [None, *Weighting])
@pytest.mark.parametrize("objective", list(Objective))
def test_a_short_fit_improves_its_own_loss(make_traces, make_draft, objective, weighting):
    traces, frozen = sampled_traces(make_traces, rounds=5), make_draft(1)
    plan = TrainingPlan(passes=4, batch_traces=6, objective=objective, weighting=weighting)
    trainer = DraftTrainer(make_draft(1), plan, make_draft(2) if objective is Objective.SELECTIVE else None)
    reference = make_draft(2) if objective is Objective.SELECTIVE else frozen
    before = loss_of(trainer.draft, traces, objective, reference)
    report = trainer.fit(traces, [])
    assert (report.steps, report.skipped_steps) == (4, 0)
    assert loss_of(trainer.draft, traces, objective, reference) < before - 1e-3


def test_the_learners_settings_know_every_objective_by_name():
    assert list(OBJECTIVES) == [str(objective) for objective in Objective]


def test_an_anchor_pulls_towards_the_teacher_even_where_the_objective_never_looks_at_it(make_traces, make_draft):
    traces = sampled_traces(make_traces)
    batch, draft = collate(traces, CPU, soft=True, verdicts=True), make_draft(1)
    for objective in (Objective.COMMITTED, Objective.REINFORCE):
        plain = score_batch(draft, batch, 3, Weighting.GEOMETRIC, objective).loss.item()
        anchored = score_batch(draft, batch, 3, Weighting.GEOMETRIC, objective, kl_weight=0.5).loss.item()
        assert anchored > plain + 0.1
        plan = TrainingPlan(passes=1, objective=objective, kl_weight=0.5)
        assert DraftTrainer(make_draft(1), plan).fit(traces, []).steps == 2


def test_reinforce_scores_the_judged_proposals_of_served_rounds_one_by_one(make_traces, make_draft, naive_draft):
    draft, old, steps = make_draft(2), make_draft(3), 3
    traces = [*make_traces([1], rounds=3), *make_traces([2], rounds=2, context_len=5)]
    logq, logq_old, judged, stood = [], [], [], []
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
            stood.append([i < min(accepted, reach) for i in range(steps)])
    tensors = (torch.tensor(logq), torch.tensor(logq_old), torch.tensor(judged), torch.tensor(stood))
    batch = collate(traces, CPU, verdicts=True)
    scores = score_batch(draft, batch, steps, Weighting.GEOMETRIC, Objective.REINFORCE, reference=old)
    assert scores.loss.item() == pytest.approx(reinforce_losses(*tensors).mean().item(), rel=1e-4)
    accepted_S = np.array(stood).sum(0) / np.maximum(np.array(judged).sum(0), 1)
    assert scores.acceptance_S.tolist() == pytest.approx(accepted_S.tolist())


def test_a_proposal_the_draft_cannot_say_ends_the_round_and_is_counted(make_traces, make_draft):
    trace = next(t for t in make_traces(range(40), rounds=1) if t.rounds.accepted[0] == 3)
    known = [i for i in range(50) if i != trace.rounds.drafted[0, 1]]
    batch = collate([trace], CPU, verdicts=True)
    scores = score_batch(make_draft(1, draft_ids=known), batch, 3, Weighting.GEOMETRIC, Objective.REINFORCE)
    assert scores.acceptance_S.tolist() == [1.0, 0.0, 0.0]
    assert scores.unspeakable_labels == 1


@pytest.mark.parametrize("steps", [2, 5])
def test_reinforce_looks_no_further_than_the_shorter_of_chain_and_plan(make_traces, make_draft, steps):
    trace = next(t for t in make_traces(range(40), rounds=2) if t.rounds.accepted[0] == 3)
    batch = collate([trace], CPU, verdicts=True)
    scores = score_batch(make_draft(1), batch, steps, Weighting.GEOMETRIC, Objective.REINFORCE)
    assert (scores.acceptance_S > 0).tolist()[:2] == [True, True]
    assert not scores.acceptance_S[3:].any()


def test_what_an_objective_lacks_is_asked_for(make_traces, make_draft):
    draft, batch = make_draft(1), collate(make_traces([1]), CPU)
    with pytest.raises(ConfigError, match="verdicts=True"):
        score_batch(draft, batch, 3, Weighting.GEOMETRIC, Objective.REINFORCE)
    for objective in WITH_REFERENCE - {Objective.REINFORCE}:
        with pytest.raises(ConfigError, match=f"{objective}: got no reference"):
            score_batch(draft, batch, 3, Weighting.GEOMETRIC, objective)


def test_an_anchor_halves_every_so_many_applied_steps(make_traces, make_draft):
    traces, seen = sampled_traces(make_traces), []
    plan = TrainingPlan(
        passes=1,
        batch_traces=6,
        kl_weight=0.8,
        kl_decay_steps=2,
        objective="committed",
        cold_learning_rate=3e-3,
        bfloat16=False,
    )
    trainer = DraftTrainer(make_draft(1), plan)
    for _ in range(5):
        batch = collate(traces, CPU, soft=True)
        weighting = Weighting.SURVIVAL if trainer._is_cold else Weighting.GEOMETRIC
        losses = [score_batch(trainer.draft, batch, 3, weighting, "committed", kl_weight=w).loss.item() for w in (0, 1)]
        seen.append((trainer.fit(traces, []).losses[0] - losses[0]) / (losses[1] - losses[0]))
    assert seen == pytest.approx([0.8, 0.8 * 0.5**0.5, 0.4, 0.4 * 0.5**0.5, 0.2], rel=1e-3)


@pytest.mark.parametrize("objective", sorted(WITH_REFERENCE))
def test_a_reference_is_neither_trained_nor_lost_by_a_restart(tmp_path, make_traces, make_draft, objective):
    traces, plan = sampled_traces(make_traces), TrainingPlan(passes=1, objective=objective)
    compared = make_draft(1)  # same target, so same embedding: a state does not hold it
    compared.load_state_dict(make_draft(2).state_dict())
    trainer, before = DraftTrainer(make_draft(1), plan, compared), weights_of(compared)
    trainer.fit(traces, [])
    trainer.save(tmp_path / "state.pt")
    resumed = DraftTrainer(make_draft(1), plan)
    resumed.load(tmp_path / "state.pt")
    assert are_equal(before, weights_of(compared))
    if objective is not Objective.REINFORCE:  # there, without one, it is the draft of each fit's start
        trainer.fit(traces, [])
        resumed.fit(traces, [])
        assert are_equal(weights_of(trainer.draft), weights_of(resumed.draft))


def test_a_frozen_copy_shares_the_targets_embedding(make_draft):
    trainer = DraftTrainer(make_draft(1), TrainingPlan(objective="group_tree"))
    assert trainer._reference.embedding_WH is trainer.draft.embedding_WH
    assert trainer._reference.fc.weight is not trainer.draft.fc.weight
    assert not any(parameter.requires_grad for parameter in trainer._reference.parameters())
