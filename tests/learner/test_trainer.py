"""The trainer: it learns, it repeats itself bit by bit, and it never applies a step that is not finite."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.buffer.stream.trace import Sampling, VerdictRule
from paceline.learner.judging.replay import replay_traces
from paceline.learner.training.batch import collate, context_rows, verdict_rows
from paceline.learner.training.first_position import FirstPosition
from paceline.learner.training.plan import Recipe, context_weight
from paceline.learner.training.scoring import score_batch
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.policies.acceptance import Tally, replayed_tally
from paceline.policies.objectives.names import Objective, Weighting
from paceline.policies.objectives.table import OBJECTIVES
from training import are_equal, training_traces, weights_of

CPU = torch.device("cpu")
COMMITTED, SOFT = OBJECTIVES[Objective.COMMITTED], OBJECTIVES[Objective.SOFT]
ALWAYS_COLD, ALWAYS_WARM = Recipe(cold_below=1.01), Recipe(cold_below=0.0)


@pytest.fixture
def make_traces(make_trace):
    return partial(training_traces, make_trace)


def replayed(draft, traces, steps: int) -> Tally:
    runs = replay_traces(draft, traces, steps)
    return sum((replayed_tally(t, r) for t, r in zip(traces, runs, strict=True)), Tally())


@pytest.mark.parametrize("objective", ["committed", "soft"])
def test_a_few_traces_are_learnt_by_heart(make_traces, make_draft, objective):
    draft, traces = make_draft(1, hidden=32), make_traces(range(4), feature_dim=96, rounds=5)
    assert replayed(draft, traces, 3).accept_length < 1.2
    trainer = DraftTrainer(
        draft, TrainingPlan(steps=3, passes=60, objective=objective), recipe=Recipe(cold_learning_rate=1e-2)
    )
    report = trainer.fit(traces, [])
    # Rounds at the end of a trace have fewer tokens to accept than steps, so the ceiling is just below 4.
    assert replayed(draft, traces, 3).accept_length > 3.4
    assert report.losses[-1] < 0.05 * report.losses[0]
    assert report.steps == len(report.losses) == 60
    assert trainer.fit(traces, []).first_position_accept > 0.95


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("draft_ids", [None, list(range(0, 50, 2))])
@pytest.mark.parametrize("context_weight", [0.0, 0.25])
def test_batch_loss_equals_rounds_decoded_one_by_one(
    make_traces, make_draft, naive_draft, weighting, draft_ids, context_weight
):
    draft, steps = make_draft(2, draft_ids=draft_ids), 3
    traces = [*make_traces([1], rounds=1), *make_traces([2], rounds=3, context_len=5)]
    to_draft = {int(t): d for d, t in enumerate(draft.draft_to_target_V)}
    total, rounds, out_of_vocabulary, accepts = 0.0, 0.0, 0, [list[float]() for _ in range(steps)]
    for trace in traces:
        first, last = trace.context_len - 1, len(trace.tokens) - 2
        judged = last - first + 1
        for root in range(max(first - judged, 1) if context_weight else first, last + 1):
            counts, survival = 1.0 if root >= first else context_weight, 1.0
            rounds += counts
            following = trace.tokens[root + 1 :]
            reach = min(steps, len(following))
            _, logits = naive_draft(draft, trace.tokens, trace.features, int(root), reach, fed=following)
            for step in range(reach):
                accept = 0.0
                if int(following[step]) in to_draft:
                    probs = np.exp(logits[step] - logits[step].max())
                    accept = probs[to_draft[int(following[step])]] / probs.sum()
                    weight = survival if weighting is Weighting.SURVIVAL else 0.8**step
                    total -= counts * weight * math.log(accept)
                out_of_vocabulary, survival = out_of_vocabulary + (not accept), survival * accept
                if root >= first:
                    accepts[step].append(accept)
    batch = collate(traces, CPU, with_context=context_weight > 0.0)
    scores = score_batch(draft, batch, steps=steps, weighting=weighting, spec=SOFT, context_weight=context_weight)
    assert scores.loss.item() == pytest.approx(total / rounds, rel=1e-4)
    assert scores.acceptance_S.tolist() == pytest.approx([np.mean(each) for each in accepts], rel=1e-4)
    assert scores.out_of_vocabulary_labels == out_of_vocabulary
    assert (out_of_vocabulary > 0) == (draft_ids is not None)


def test_a_teacher_that_is_sure_of_the_committed_token_trains_like_that_token(make_traces, make_draft):
    traces = make_traces([1, 2], top_k=1, sampling=Sampling(temperature=0.7))
    draft = make_draft(2, draft_ids=list(range(0, 50, 2)))
    for weighting in Weighting:
        hard = score_batch(draft, collate(traces, CPU), steps=3, weighting=weighting, spec=COMMITTED)
        soft = score_batch(draft, collate(traces, CPU, soft=True), steps=3, weighting=weighting, spec=SOFT)
        assert soft.loss.item() == pytest.approx(hard.loss.item(), rel=1e-5)
        assert soft.out_of_vocabulary_labels == hard.out_of_vocabulary_labels
        torch.testing.assert_close(soft.acceptance_S, hard.acceptance_S)


def test_a_trainer_continues_from_its_file_bit_by_bit(tmp_path, make_traces, make_draft):
    fresh, window, later = make_traces(range(5)), make_traces(range(10, 16)), make_traces(range(20, 24))
    plan, recipe = TrainingPlan(passes=2), Recipe(batch_traces=2, cold_below=0.0)
    trainer = DraftTrainer(make_draft(1), plan, recipe=recipe)
    trainer.fit(fresh, window)
    trainer.save(tmp_path / "state.pt")
    other = make_draft(1)  # same target, so same embedding: a state does not hold it
    for parameter in other.parameters():
        torch.nn.init.ones_(parameter)
    resumed = DraftTrainer(other, plan, recipe=recipe)
    resumed.load(tmp_path / "state.pt")
    first, second = trainer.fit(later, window), resumed.fit(later, window)
    assert are_equal(weights_of(trainer.draft), weights_of(resumed.draft))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


def test_a_state_of_another_draft_or_no_state_changes_nothing(tmp_path, make_traces, make_draft):
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
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1), recipe=Recipe(batch_traces=1))
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
    cold = DraftTrainer(make_draft(1), TrainingPlan(), recipe=ALWAYS_COLD).fit(traces, [])
    warm = DraftTrainer(make_draft(1), TrainingPlan(), recipe=ALWAYS_WARM).fit(traces, [])
    assert (cold.weighting, cold.learning_rate) == ("survival", 5e-3)
    assert (warm.weighting, warm.learning_rate) == ("geometric", 5e-4)
    assert cold.first_position_accept == warm.first_position_accept


def test_the_context_counts_less_the_more_a_draft_reaches_and_nothing_from_six_tenths_on() -> None:
    shares = (0.0, 0.25, 0.5, 0.6, 0.9, 1.0, 1.2, math.nan)
    assert [context_weight(1.0, share) for share in shares] == pytest.approx([1.0, 0.75, 0.5, 0, 0, 0, 0, 0])
    assert [context_weight(0.5, share) for share in shares] == pytest.approx([0.5, 0.375, 0.25, 0, 0, 0, 0, 0])
    assert [context_weight(0.0, share) for share in shares] == [0.0] * len(shares)


def test_a_fit_trains_on_the_context_only_where_it_has_a_weight(make_traces, make_draft, monkeypatch):
    traces, found = make_traces(range(4), context_len=6), []
    for accept, weight in ((0.25, 0.0), (0.25, 1.0), (0.35, 0.0), (0.35, 1.0)):
        first = FirstPosition(accept, 0.5)
        monkeypatch.setattr("paceline.learner.training.trainer.first_position", lambda *_, first=first: first)
        trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1, context_weight=weight))
        found.append((trainer.fit(traces, []).context_weight, weights_of(trainer.draft)))
    assert [weight for weight, _ in found] == [0.0, 0.5, 0.0, 0.0]
    low, low_with_context, high, high_with_context = (weights for _, weights in found)
    assert not are_equal(low, low_with_context)
    assert are_equal(high, high_with_context)


def test_first_position_acceptance_is_measured_before_training(make_traces, make_draft, naive_draft):
    draft, traces = make_draft(3, vocab=5), make_traces(range(3), vocab=5)
    hits = [
        naive_draft(draft, trace.tokens, trace.features, int(row) + 1, 1)[0][0] == trace.tokens[row + 2]
        for trace in traces
        for row in verdict_rows(trace)
    ]
    fit = DraftTrainer(draft, TrainingPlan(passes=1)).fit(traces, [])
    assert (fit.first_position_accept, fit.first_position_attainable) == (pytest.approx(np.mean(hits)), 1.0)


def test_a_draft_that_is_cold_no_more_trains_at_a_rate_that_halves_over_its_steps(make_traces, make_draft, monkeypatch):
    shares = iter([0.2, 0.8, 0.8, 0.8])
    monkeypatch.setattr("paceline.learner.training.trainer.first_position", lambda *_: FirstPosition(next(shares), 1.0))
    recipe = Recipe(batch_traces=1, rate_half_life_steps=4.0)
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1), recipe=recipe)
    applied, step = [], trainer._optimiser.step
    monkeypatch.setattr(trainer._optimiser, "step", lambda rate: (applied.append(rate), step(rate)))
    reported = [trainer.fit(make_traces(range(6)), []).learning_rate for _ in range(4)]
    warm_up = [min(1.0, n / 10) for n in range(1, 25)]
    rates = [5e-3] * 6 + [max(5e-3 * 0.5 ** (n / 4), 5e-4) for n in range(18)]
    assert applied == pytest.approx([rate * share for rate, share in zip(rates, warm_up, strict=True)])
    assert reported == pytest.approx([5e-3, 5e-3 * 0.5**1.5, 5e-3 * 0.5**3, 5e-4])


@pytest.mark.parametrize(("attainable", "learning_rate"), [(1.0, 5e-3), (0.5, 5e-4)])
def test_uncertain_text_alone_does_not_make_a_draft_cold(
    make_traces, make_draft, monkeypatch, attainable, learning_rate
):
    monkeypatch.setattr("paceline.learner.training.trainer.first_position", lambda *_: FirstPosition(0.35, attainable))
    fit = DraftTrainer(make_draft(1), TrainingPlan(passes=1)).fit(make_traces(range(2)), [])
    assert fit.learning_rate == learning_rate


def test_the_learning_rate_warms_up_over_ten_applied_steps(make_traces, make_draft):
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1), recipe=Recipe(batch_traces=1, cold_below=1.01))
    rates = []
    for trace in make_traces(range(12)):
        trainer.fit([trace], [])
        optimiser = trainer._optimiser
        rates.append([each.param_groups[0]["lr"] for each in (optimiser._adam, optimiser._muon)])
    warmed = [min(1.0, n / 10) for n in range(1, 13)]
    assert [rate for rate, _ in rates] == pytest.approx([5e-3 * share for share in warmed])
    assert [rate for _, rate in rates] == pytest.approx([2.0 * 5e-3 * share for share in warmed])


def test_a_long_gradient_is_clipped_before_it_is_applied(make_traces, make_draft, monkeypatch):
    monkeypatch.setattr("paceline.learner.training.trainer.GRAD_CLIP", 1e-3)
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=1))
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
    rows, context = len(verdict_rows(traces[0])), len(context_rows(traces[0]))
    assert report.out_of_vocabulary_labels == rows + (rows - 1) + 2 * context
    assert (report.losses, report.mean_acceptance) == ((0.0,), (0.0, 0.0))


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": 0},
        {"passes": 0},
        {"batch_tokens": 0},
        {"objective": "rl"},
        {"objective": "reinforce"},
        {"context_weight": 1.5},
        {"context_weight": -0.5},
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError, match=f"(?s)(?=.*got.*{value}.*expected).*{name}"):
        TrainingPlan(**bad)


@pytest.mark.parametrize(
    "bad",
    [{"batch_traces": 0}, {"replay_share": 1.0}, {"replay_share": -0.1}, {"matrix_rate": -1.0}]
    + [{"rate_half_life_steps": value} for value in (-1.0, math.inf, math.nan)],
)
def test_a_recipe_that_cannot_be_followed_is_refused(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError, match=f"{name} {value}.*expected"):
        Recipe(**bad)


def test_training_under_bfloat16_keeps_float32_weights(make_traces, make_draft, monkeypatch):
    monkeypatch.setattr("paceline.learner.training.trainer.has_bfloat16", lambda _: True)
    trainer = DraftTrainer(make_draft(1), TrainingPlan(passes=4))
    report = trainer.fit(make_traces(range(4)), [])
    assert report.losses[-1] < report.losses[0]
    assert {parameter.dtype for parameter in trainer.draft.parameters()} == {torch.float32}


def sampled_traces(make_traces, **changes):
    """Traces of both rules at temperature 0.7 and of a greedy request, with a teacher."""
    sampling = Sampling(temperature=0.7)
    rules = (VerdictRule.TARGET_ONLY, VerdictRule.REJECTION)
    sampled = [make_traces([s], sampling=sampling, verdict_rule=rules[s % 2], **changes)[0] for s in range(5)]
    return [*sampled, *make_traces([9], **changes)]


def loss_of(draft, traces, objective: Objective, steps: int = 3) -> float:
    batch = collate(traces, CPU, soft=True)
    return score_batch(draft, batch, steps=steps, weighting=Weighting.GEOMETRIC, spec=OBJECTIVES[objective]).loss.item()


@pytest.mark.parametrize("recipe", [ALWAYS_COLD, ALWAYS_WARM])
@pytest.mark.parametrize("objective", list(Objective))
def test_a_short_fit_improves_its_own_loss(make_traces, make_draft, objective, recipe):
    traces = sampled_traces(make_traces, rounds=5)
    trainer = DraftTrainer(
        make_draft(1), TrainingPlan(passes=4, objective=objective), recipe=replace(recipe, batch_traces=6)
    )
    before = loss_of(trainer.draft, traces, objective)
    report = trainer.fit(traces, [])
    assert (report.steps, report.skipped_steps) == (4, 0)
    assert loss_of(trainer.draft, traces, objective) < before - 1e-3
