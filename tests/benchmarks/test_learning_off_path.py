"""Served rounds scored on what they drafted: each against the draft decoded alone, in float64, fed its own drafts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from paceline.benchmarks.learning.training.off_path import chain_hidden, node_losses
from paceline.benchmarks.learning.training.plan import BenchPlan
from paceline.benchmarks.learning.training.scoring import score_all
from paceline.benchmarks.learning.training.served_rounds import collate_rounds, sharpened_rounds
from paceline.benchmarks.learning.training.trainer import BenchTrainer
from paceline.benchmarks.learning.training.verdicts import collate_verdicts
from paceline.buffer.errors import ConfigError
from paceline.buffer.trace import NO_DRAFT, Sampling, VerdictRule
from paceline.learner.training.batch import collate, verdict_rows
from paceline.policies.objectives.baselines.names import Baseline
from paceline.policies.objectives.names import Objective, Weighting

CPU = torch.device("cpu")
WARM = Sampling(temperature=0.7, top_k=3, top_p=0.9)


@pytest.fixture
def traces(make_trace):
    """Greedy and sampled, of different widths and lengths; one round cut short, one chain short, one not judged."""
    made = [
        make_trace(1, feature_dim=48, rounds=6, steps=3, context_len=1),
        make_trace(2, feature_dim=48, rounds=3, steps=4, context_len=5, sampling=WARM),
        make_trace(3, feature_dim=48, rounds=4, steps=3, context_len=3, sampling=Sampling(temperature=1.3)),
        make_trace(4, feature_dim=48, rounds=2, steps=2, context_len=3, top_k=0),
        make_trace(5, feature_dim=48, rounds=2, steps=3, context_len=0),
    ]
    shorter = made[2].rounds.drafted.copy()
    accepted = int(made[2].rounds.accepted[1])
    shorter[1, max(accepted, 1) :] = NO_DRAFT
    made[2] = replace(made[2], rounds=replace(made[2].rounds, drafted=shorter))
    last = int(made[1].rounds.starts[-1])  # the request ended at the root of its last round
    made[1] = replace(made[1], tokens=made[1].tokens[: last + 1], features=made[1].features[:last])
    return made


def teacher_of(trace, r: int, node: int, to_draft: dict[int, int], sharpened: float = 1.0) -> dict[int, float]:
    """Draft id -> probability at a node, for entries in the draft's vocabulary."""
    ids = trace.rounds.teacher_ids[r, node].tolist()
    if trace.sampling.temperature == 0.0:
        kept = {ids[0]: 1.0}
    else:
        weights = np.exp(trace.rounds.teacher_logprobs[r, node].astype(float) / trace.sampling.temperature)
        weights = weights / weights.sum()
        weights = [w if trace.sampling.top_k < 0 or i < trace.sampling.top_k else 0.0 for i, w in enumerate(weights)]
        weights = np.array(weights) / sum(weights)
        kept = {
            t: w for i, (t, w) in enumerate(zip(ids, weights, strict=True)) if sum(weights[:i]) < trace.sampling.top_p
        }
    kept = {t: w ** (1.0 / sharpened) for t, w in kept.items() if w > 0}
    said = {to_draft[t]: w / sum(kept.values()) for t, w in kept.items() if t in to_draft}
    return {d: w / sum(said.values()) for d, w in said.items()}


def expected_rounds(trace, steps: int) -> list[tuple[int, int]]:
    """Rounds that can be drafted and were judged, each with its number of nodes."""
    if not trace.rounds.teacher_ids.shape[2]:
        return []
    drafts = [sum(t != NO_DRAFT for t in row) for row in trace.rounds.drafted.tolist()]
    return [(r, min(drafts[r] + 1, steps)) for r, start in enumerate(trace.rounds.starts) if start > 0]


def oracle(draft, naive_draft, trace, r: int, nodes: int, weighting, sharpened: float = 1.0):
    """Weighted cross-entropies of one round, node by node; None where no entry is in its vocabulary."""
    to_draft = {int(t): d for d, t in enumerate(draft.draft_to_target_V)}
    root, chain = int(trace.rounds.starts[r]), trace.rounds.drafted[r].tolist()
    _, logits = naive_draft(draft, trace.tokens, trace.features, root, nodes, fed=chain)
    survival, out = 1.0, []
    for node in range(nodes):
        q = np.exp(logits[node] - logits[node].max())
        q, p = q / q.sum(), teacher_of(trace, r, node, to_draft, sharpened)
        weight = survival if weighting is Weighting.SURVIVAL else 0.8**node
        out.append(-sum(w * np.log(q[d]) for d, w in p.items()) * weight if p else None)
        survival *= sum(w * q[d] for d, w in p.items())
    return out


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize(("steps", "draft_ids"), [(3, None), (5, list(range(0, 50, 2)))])
def test_every_node_costs_what_the_round_decoded_alone_says(
    traces, make_draft, naive_draft, weighting, steps, draft_ids
):
    draft = make_draft(2, draft_ids=draft_ids)
    rounds = sharpened_rounds(collate_rounds(traces, CPU, steps), 0.6)
    got = node_losses(draft, collate(traces, CPU), rounds, weighting)
    scored = 0
    for b, trace in enumerate(traces):
        known = expected_rounds(trace, steps)
        assert (rounds.nodes_BR[b] > 0).tolist() == [i < len(known) for i in range(rounds.nodes_BR.shape[1])]
        for i, (r, nodes) in enumerate(known):
            costs = oracle(draft, naive_draft, trace, r, nodes, weighting, sharpened=0.6)
            padding = [0.0] * (got.losses_BRN.shape[2] - nodes)
            assert got.losses_BRN[b, i].tolist() == pytest.approx(
                [c or 0.0 for c in costs] + padding, rel=2e-4, abs=1e-7
            )
            assert got.out_of_vocabulary_BRN[b, i].tolist() == [c is None for c in costs] + [False] * len(padding)
            off_path = [n > trace.rounds.accepted[r] for n in range(nodes)] + [False] * len(padding)
            assert rounds.off_path_mask()[b, i].tolist() == off_path
            scored += nodes
    assert int(rounds.judged_mask().sum()) == scored > 30
    assert int(rounds.off_path_mask().sum()) > 5
    assert bool(got.out_of_vocabulary_BRN.any()) == (draft_ids is not None)


def test_up_to_the_first_rejection_a_chain_is_the_one_on_committed_text(traces, make_draft):
    draft, batch, rounds = make_draft(2), collate(traces, CPU, every_row=True), collate_rounds(traces, CPU, 3)
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ)
    committed_BQSH = torch.stack([draft.advance(chains) for _ in range(3)], 2)
    drafted_BRNH = chain_hidden(draft, batch, rounds)
    compared = differs = 0
    for b, r, n in rounds.judged_mask().nonzero().tolist():
        row, inside = int(rounds.rows_BR[b, r]), int(rounds.rows_BR[b, r]) + 1 + n < len(traces[b].tokens)
        if n <= rounds.accepted_BR[b, r] and inside:
            torch.testing.assert_close(drafted_BRNH[b, r, n], committed_BQSH[b, row, n])
            compared += 1
        elif n > rounds.accepted_BR[b, r]:
            differs += not torch.allclose(drafted_BRNH[b, r, n], committed_BQSH[b, row, n])
    assert compared > 20
    assert differs == int(rounds.off_path_mask().sum())


def test_the_gradient_is_that_of_every_round_unrolled_on_its_own_line(traces, make_draft):
    together, alone, steps = make_draft(2), make_draft(2), 3
    rounds = collate_rounds(traces, CPU, steps)
    node_losses(together, collate(traces, CPU), rounds, Weighting.GEOMETRIC).losses_BRN.sum().backward()
    total = torch.zeros(())
    for trace in traces:
        for r, nodes in expected_rounds(trace, steps):
            root = int(trace.rounds.starts[r])
            chain = trace.rounds.drafted[r, : nodes - 1].tolist()
            tokens = torch.tensor([[*trace.tokens[: root + 1].tolist(), *chain]])
            chains = alone.begin(tokens, torch.tensor(trace.features[None, :root]), torch.tensor([[root - 1]]))
            for node in range(nodes):
                logq = alone.lm_head(alone.advance(chains))[0, 0].log_softmax(0)
                for token, prob in teacher_of(trace, r, node, {t: t for t in range(50)}).items():
                    total = total - 0.8**node * prob * logq[token]
    total.backward()
    for one, other in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)


def test_only_rounds_with_a_node_after_a_rejection_are_kept_where_no_other_is_asked_for(traces, make_draft):
    draft, batch, steps = make_draft(2), collate(traces, CPU), 3
    every, some = collate_rounds(traces, CPU, steps), collate_rounds(traces, CPU, steps, rejected_only=True)
    for b, trace in enumerate(traces):
        kept = [r for r, nodes in expected_rounds(trace, steps) if trace.rounds.accepted[r] + 1 < nodes]
        assert some.rows_BR[b][some.nodes_BR[b] > 0].tolist() == (trace.rounds.starts[kept] - 1).tolist()
    off_path = [
        node_losses(draft, batch, rounds, Weighting.SURVIVAL).losses_BRN[rounds.off_path_mask()]
        for rounds in (every, some)
    ]
    torch.testing.assert_close(off_path[0], off_path[1])
    assert int((some.nodes_BR > 0).sum()) < int((every.nodes_BR > 0).sum())


@pytest.mark.parametrize("objective", [Objective.COMMITTED, Objective.MATCHED, Baseline.REINFORCE])
def test_nodes_after_a_rejection_join_the_loss_of_any_objective(traces, make_draft, naive_draft, objective):
    draft, steps, weighting = make_draft(2), 3, Weighting.SURVIVAL
    batch, verdicts = collate(traces, CPU, soft=True), collate_verdicts(traces, CPU)
    rounds = collate_rounds(traces, CPU, steps, rejected_only=True)
    plain = score_all(draft, batch, steps, weighting, objective, verdicts=verdicts)
    joined = score_all(draft, batch, steps, weighting, objective, verdicts=verdicts, rounds=rounds, off_path_weight=0.3)
    off_path = 0.0
    for trace in traces:
        for r, nodes in expected_rounds(trace, steps):
            costs = oracle(draft, naive_draft, trace, r, nodes, weighting)
            off_path += sum(cost for node, cost in enumerate(costs) if node > trace.rounds.accepted[r])
    rows = sum(len(verdict_rows(trace)) for trace in traces)
    assert (joined.loss - plain.loss).item() == pytest.approx(0.3 * off_path / rows, rel=1e-3)
    assert joined.acceptance_S.tolist() == plain.acceptance_S.tolist()
    assert joined.out_of_vocabulary_labels == plain.out_of_vocabulary_labels


def test_the_mix_is_half_the_soft_loss_of_the_text_and_half_that_of_the_drafted_chains(traces, make_draft, naive_draft):
    draft, steps, weighting = make_draft(2, draft_ids=list(range(0, 50, 2))), 3, Weighting.GEOMETRIC
    batch, rounds = collate(traces, CPU, soft=True), collate_rounds(traces, CPU, steps)
    soft = score_all(draft, batch, steps, weighting, Objective.SOFT)
    mixed = score_all(draft, batch, steps, weighting, Baseline.ON_POLICY_MIX, rounds=rounds)
    known = [(trace, r, nodes) for trace in traces for r, nodes in expected_rounds(trace, steps)]
    costs = [cost for trace, r, nodes in known for cost in oracle(draft, naive_draft, trace, r, nodes, weighting)]
    drafted = sum(cost for cost in costs if cost is not None) / len(known)
    assert mixed.loss.item() == pytest.approx(0.5 * soft.loss.item() + 0.5 * drafted, rel=1e-4)
    assert mixed.out_of_vocabulary_labels == soft.out_of_vocabulary_labels + sum(cost is None for cost in costs)
    assert mixed.acceptance_S.tolist() == soft.acceptance_S.tolist()


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_traces_without_a_teacher_add_nothing(make_trace, make_draft, weight):
    traces = [make_trace(s, feature_dim=48, top_k=0, context_len=3) for s in range(2)]
    draft, batch, rounds = make_draft(2), collate(traces, CPU, soft=True), collate_rounds(traces, CPU, 3)
    assert rounds.rows_BR.shape == (2, 0)
    plain = score_all(draft, batch, 3, Weighting.SURVIVAL, Objective.SOFT)
    kwargs = {"rounds": rounds, "off_path_weight": weight}
    same = score_all(draft, batch, 3, Weighting.SURVIVAL, Objective.SOFT, **kwargs)
    half = score_all(draft, batch, 3, Weighting.SURVIVAL, Baseline.ON_POLICY_MIX, **kwargs)
    assert (same.loss.item(), half.loss.item()) == (plain.loss.item(), plain.loss.item() / 2)


def test_served_rounds_that_are_missing_are_asked_for(traces, make_draft):
    draft, batch = make_draft(2), collate(traces, CPU, soft=True)
    with pytest.raises(ConfigError, match=r"objective on_policy_mix.*got no served rounds"):
        score_all(draft, batch, 3, Weighting.SURVIVAL, Baseline.ON_POLICY_MIX)
    with pytest.raises(ConfigError, match=r"off_path_weight 0.1: got no served rounds"):
        score_all(draft, batch, 3, Weighting.SURVIVAL, Objective.SOFT, off_path_weight=0.1)


@pytest.mark.parametrize(
    ("objective", "weight", "without"),
    [("committed", 1.0, "committed"), ("reinforce", 1.0, "reinforce"), ("on_policy_mix", 0.0, "soft")],
)
def test_training_after_rejections_teaches_what_the_target_says_there(
    make_trace, make_draft, objective, weight, without
):
    traces = [make_trace(s, feature_dim=48, rounds=5, context_len=3) for s in range(4)]
    rejection = make_trace(
        9, feature_dim=48, rounds=5, context_len=3, verdict_rule=VerdictRule.REJECTION, sampling=WARM
    )
    rounds = collate_rounds([*traces, rejection], CPU, 3, rejected_only=True)

    def off_path(draft) -> float:
        losses = node_losses(draft, collate([*traces, rejection], CPU), rounds, Weighting.GEOMETRIC).losses_BRN
        return losses[rounds.off_path_mask()].sum().item()

    plan = BenchPlan(
        passes=40, batch_traces=5, objective=without, weighting="geometric", cold_learning_rate=1e-2, cold_below=1.0
    )
    reached = []
    for each in (plan, replace(plan, objective=objective, off_path_weight=weight)):
        trainer = BenchTrainer(make_draft(1), each)
        report = trainer.fit([*traces, rejection], [])
        assert (report.steps, report.skipped_steps) == (40, 0)
        reached.append(off_path(trainer.draft))
    assert reached[1] < 0.7 * min(reached[0], off_path(make_draft(1)))
