"""Objectives by name: each is the loss of its family, put on the grid and weighted; and what each of them needs."""

import math

import numpy as np
import pytest
import torch
from paceline.policies.objectives.acceptance import matched_log_accepts, rejection_log_accepts, target_only_log_accepts
from paceline.policies.objectives.baselines.divergence import jensen_shannon_losses, reverse_kl_losses
from paceline.policies.objectives.baselines.expected_length import (
    expected_length_losses,
    log_expected_length_losses,
    log_follows,
)
from paceline.policies.objectives.baselines.forward_kl import selective_losses, wrong_position_losses
from paceline.policies.objectives.baselines.group import best_token_probs, chain_rewards, group_advantages, group_losses
from paceline.policies.objectives.baselines.names import Baseline
from paceline.policies.objectives.baselines.overlap import ce_l1_losses, lk_mix_losses, tvd_plus_plus_losses
from paceline.policies.objectives.baselines.table import BASELINES, BENCH_OBJECTIVES
from paceline.policies.objectives.losses import onto_grid
from paceline.policies.objectives.names import Objective, Weighting
from paceline.policies.objectives.spec import ObjectiveSpec, Positions, grid_loss
from paceline.policies.objectives.table import OBJECTIVES, soft

V, K, ROUNDS = 5, 3, 6
MASK = torch.tensor([[[1, 1, 1], [1, 0, 1]], [[1, 1, 0], [0, 0, 0]]]).bool()
INSIDE = torch.tensor([[[1, 1, 1], [1, 1, 1]], [[1, 1, 0], [0, 0, 0]]]).bool()
N = int(MASK.sum())


def positions(*, reference: bool = True) -> Positions:
    rng = np.random.default_rng(11)
    ids = torch.tensor(np.array([rng.permutation(V)[:K] for _ in range(N)]))
    logits = torch.tensor(rng.normal(size=(N, V)) * 2, requires_grad=True)
    frozen = torch.tensor(rng.normal(size=(N, V)) * 2)
    committed = ids[:, 0].clone()
    committed[:3] = logits[:3].argmax(1).detach()
    trace_N, _, steps_N = MASK.nonzero(as_tuple=True)
    return Positions(
        logits,
        committed,
        ids,
        torch.tensor(rng.dirichlet(np.ones(K), N)),
        trace_N == 1,
        steps_N,
        frozen if reference else None,
    )


def cross_entropy(at: Positions) -> torch.Tensor:
    return -(at.probs_NK * at.logits_NV.log_softmax(1).gather(1, at.ids_NK)).sum(1)


BY_POSITION = {
    "committed": lambda at: -at.logits_NV.log_softmax(1)[range(N), at.committed_N],
    "soft": cross_entropy,
    "target_only": lambda at: -target_only_log_accepts(*at.teacher),
    "rejection": lambda at: -rejection_log_accepts(*at.teacher),
    "matched": lambda at: -matched_log_accepts(*at.teacher, at.rejection_N),
    "forward_kl_wrong": lambda at: wrong_position_losses(at.logits_NV, at.committed_N, at.ids_NK, at.probs_NK),
    "reverse_kl": lambda at: reverse_kl_losses(*at.teacher),
    "jensen_shannon": lambda at: jensen_shannon_losses(*at.teacher),
    "tvd_plus_plus": lambda at: tvd_plus_plus_losses(*at.teacher),
    "lk_mix": lambda at: lk_mix_losses(*at.teacher, at.steps_N),
    "ce_l1": lambda at: ce_l1_losses(at.logits_NV, at.committed_N, at.ids_NK, at.probs_NK),
    "selective": lambda at: selective_losses(at.logits_NV, at.reference_NV, at.ids_NK, at.probs_NK),
    "on_policy_mix": cross_entropy,
}


def accepts_of(name: str, at: Positions) -> list[float]:
    """A of every position: under the rule an objective names, else under that of the trace."""
    q, trace = at.logits_NV.detach().softmax(1), MASK.nonzero()[:, 0].tolist()
    out = []
    for n in range(N):
        pairs = [(p, q[n, i].item()) for p, i in zip(at.probs_NK[n].tolist(), at.ids_NK[n].tolist(), strict=True)]
        product, overlap = sum(p * x for p, x in pairs), sum(min(p, x) for p, x in pairs)
        named = {"committed": q[n, at.committed_N[n]].item(), "rejection": overlap}
        by_product = ("soft", "target_only", "forward_kl_accepted", "group_tree", "on_policy_mix")
        named |= dict.fromkeys(by_product, product)
        out.append(named.get(name, overlap if trace[n] == 1 else product))
    return out


def weighted(values: torch.Tensor, accepts: list[float], weighting: Weighting) -> float:
    spots = {tuple(spot): n for n, spot in enumerate(MASK.nonzero().tolist())}
    total = 0.0
    for b, q in np.ndindex(2, 2):
        survival = 1.0
        for s in range(3):
            n = spots.get((b, q, s))
            if n is not None:
                total += values[n].item() * (survival if weighting is Weighting.SURVIVAL else 0.8**s)
            survival *= 0.0 if n is None else accepts[n]
    return total / ROUNDS


def scored(name: str, weighting: Weighting = Weighting.GEOMETRIC):
    at = positions()
    return at, grid_loss(BENCH_OBJECTIVES[name], at, MASK, INSIDE, rounds=ROUNDS, weighting=weighting)


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("name", BY_POSITION)
def test_an_objective_of_positions_is_its_family_weighted_by_how_likely_a_position_is_reached(name, weighting):
    at, got = scored(name, weighting)
    accepts = accepts_of(name, at)
    assert got.loss.item() == pytest.approx(weighted(BY_POSITION[name](at), accepts, weighting), rel=1e-9)
    by_step = [[accepts[n] for n in range(N) if at.steps_N[n] == s] for s in range(3)]
    expected = [sum(values) / inside for values, inside in zip(by_step, INSIDE.sum((0, 1)).tolist(), strict=True)]
    assert got.acceptance_S.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("weighting", list(Weighting))
def test_a_chain_objective_weighs_its_positions_itself(weighting):
    for name, losses in (
        ("expected_length", expected_length_losses),
        ("log_expected_length", log_expected_length_losses),
    ):
        at, got = scored(name, weighting)
        follows = log_follows(at.logits_NV, at.committed_N, at.ids_NK, at.probs_NK, at.rejection_N)
        accepts = matched_log_accepts(*at.teacher, at.rejection_N)
        grids = [onto_grid(values, MASK, float("-inf")) for values in (accepts, follows)]
        assert got.loss.item() == pytest.approx(losses(*grids).sum().item() / ROUNDS, rel=1e-12)


def test_auroras_loss_is_a_mean_of_its_own_at_every_draft_step():
    at, got = scored("forward_kl_accepted", Weighting.SURVIVAL)
    means = [cross_entropy(at)[at.steps_N == s].mean().item() for s in range(3)]
    assert got.loss.item() == pytest.approx(sum(0.8**s * mean for s, mean in enumerate(means)), rel=1e-9)


def test_the_group_objective_is_the_token_loss_and_the_surrogate_of_rows_that_beat_the_reference():
    at, got = scored("group_tree")
    chains = []
    for logits in (at.logits_NV.detach(), at.reference_NV):
        agrees = onto_grid(logits.argmax(1) == at.committed_N, MASK, fill=False)
        probs = onto_grid(best_token_probs(logits, at.ids_NK, at.probs_NK), MASK, 0.0)
        logq = onto_grid(logits.log_softmax(1)[range(N), at.committed_N], MASK, 0.0)
        chains.append((logq, agrees, chain_rewards(agrees, probs)))
    advantages = group_advantages(chains[0][2] - chains[1][2], MASK[..., 0])
    surrogate = group_losses(chains[0][0], chains[1][0], chains[0][1], advantages).sum().item()
    assert surrogate != 0.0
    token = weighted(cross_entropy(at), accepts_of("group_tree", at), Weighting.GEOMETRIC)
    assert got.loss.item() == pytest.approx(token + surrogate / ROUNDS, rel=1e-9)


@pytest.mark.parametrize("name", sorted(name for name, spec in BENCH_OBJECTIVES.items() if not spec.needs_verdicts))
def test_every_objective_gives_all_its_positions_a_finite_gradient(name):
    at, got = scored(name, Weighting.SURVIVAL)
    got.loss.backward()
    assert math.isfinite(got.loss.item())
    assert at.logits_NV.grad.isfinite().all()
    assert at.logits_NV.grad.abs().sum() > 0
    assert not got.acceptance_S.requires_grad


@pytest.mark.parametrize("name", ["selective", "group_tree"])
def test_an_objective_that_compares_asks_for_something_to_compare_with(name):
    at, spec = positions(reference=False), BENCH_OBJECTIVES[name]
    with pytest.raises(ValueError, match="reference"):
        grid_loss(spec, at, MASK, INSIDE, rounds=ROUNDS, weighting=Weighting.GEOMETRIC)


def test_an_objective_of_verdicts_refuses_committed_text():
    with pytest.raises(ValueError, match="got 7 positions of committed text, expected verdicts"):
        scored("reinforce")


#: What each objective asks for beside committed text and its teacher.
NEEDS = {
    "reinforce": {"needs_reference", "needs_verdicts"},
    "selective": {"needs_reference"},
    "group_tree": {"needs_reference"},
    "on_policy_mix": {"needs_served_rounds"},
}


@pytest.mark.parametrize("name", BENCH_OBJECTIVES)
def test_an_objective_says_what_it_needs(name):
    spec = BENCH_OBJECTIVES[name]
    asked = {field for field in ("needs_reference", "needs_verdicts", "needs_served_rounds") if getattr(spec, field)}
    assert asked == NEEDS.get(name, set())
    assert spec.needs_teacher == (name not in {"committed", "reinforce"})
    assert spec.as_served == (name != "forward_kl_accepted")


def test_production_chooses_among_five_objectives_and_none_asks_for_more_than_a_teacher():
    assert [str(name) for name in OBJECTIVES] == ["committed", "soft", "target_only", "rejection", "matched"]
    for name, spec in OBJECTIVES.items():
        assert spec == ObjectiveSpec(spec.position_loss, needs_teacher=name != "committed")
    assert OBJECTIVES[Objective.SOFT].position_loss is soft


def test_every_name_has_one_objective_and_every_objective_a_name():
    assert set(OBJECTIVES) == set(Objective)
    assert set(BASELINES) == set(Baseline)
    assert len(BENCH_OBJECTIVES) == len(OBJECTIVES) + len(BASELINES) == 18
