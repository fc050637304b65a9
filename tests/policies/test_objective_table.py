"""Objectives by name: each is the loss of its family, put on the grid and weighted; and what each of them needs."""

import math

import numpy as np
import pytest
import torch
from paceline.policies.objectives.acceptance import matched_log_accepts, rejection_log_accepts, target_only_log_accepts
from paceline.policies.objectives.losses import mean_acceptance
from paceline.policies.objectives.names import Objective, Weighting
from paceline.policies.objectives.spec import Positions, chains_of
from paceline.policies.objectives.table import OBJECTIVES

V, K, ROUNDS = 5, 3, 6
MASK = torch.tensor([[[1, 1, 1], [1, 0, 1]], [[1, 1, 0], [0, 0, 0]]]).bool()
INSIDE = torch.tensor([[[1, 1, 1], [1, 1, 1]], [[1, 1, 0], [0, 0, 0]]]).bool()
N = int(MASK.sum())


def positions() -> Positions:
    rng = np.random.default_rng(11)
    ids = torch.tensor(np.array([rng.permutation(V)[:K] for _ in range(N)]))
    logits = torch.tensor(rng.normal(size=(N, V)) * 2, requires_grad=True)
    committed = ids[:, 0].clone()
    committed[:3] = logits[:3].argmax(1).detach()
    trace_N, _, steps_N = MASK.nonzero(as_tuple=True)
    return Positions(
        logits_NV=logits,
        committed_N=committed,
        ids_NK=ids,
        probs_NK=torch.tensor(rng.dirichlet(np.ones(K), N)),
        rejection_N=trace_N == 1,
        steps_N=steps_N,
    )


def cross_entropy(at: Positions) -> torch.Tensor:
    return -(at.probs_NK * at.logits_NV.log_softmax(1).gather(1, at.ids_NK)).sum(1)


BY_POSITION = {
    "committed": lambda at: -at.logits_NV.log_softmax(1)[range(N), at.committed_N],
    "soft": cross_entropy,
    "target_only": lambda at: -target_only_log_accepts(*at.teacher),
    "rejection": lambda at: -rejection_log_accepts(*at.teacher),
    "matched": lambda at: -matched_log_accepts(*at.teacher, at.rejection_N),
}


def accepts_of(name: str, at: Positions) -> list[float]:
    """A of every position: under the rule an objective names, else under that of the trace."""
    q, trace = at.logits_NV.detach().softmax(1), MASK.nonzero()[:, 0].tolist()
    out = []
    for n in range(N):
        pairs = [(p, q[n, i].item()) for p, i in zip(at.probs_NK[n].tolist(), at.ids_NK[n].tolist(), strict=True)]
        product, overlap = sum(p * x for p, x in pairs), sum(min(p, x) for p, x in pairs)
        named = {"committed": q[n, at.committed_N[n]].item(), "rejection": overlap}
        by_product = ("soft", "target_only")
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
    spec = OBJECTIVES[Objective(name)]
    chains = chains_of(spec, at, MASK, rounds=ROUNDS, weighting=weighting)
    return at, spec.chain_loss(chains), mean_acceptance(chains.log_accepts_BQS, INSIDE)


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("name", BY_POSITION)
def test_an_objective_of_positions_is_its_family_weighted_by_how_likely_a_position_is_reached(name, weighting):
    at, loss, acceptance_S = scored(name, weighting)
    accepts = accepts_of(name, at)
    assert loss.item() == pytest.approx(weighted(BY_POSITION[name](at), accepts, weighting), rel=1e-9)
    by_step = [[accepts[n] for n in range(N) if at.steps_N[n] == s] for s in range(3)]
    expected = [sum(values) / inside for values, inside in zip(by_step, INSIDE.sum((0, 1)).tolist(), strict=True)]
    assert acceptance_S.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", list(Objective))
def test_every_objective_gives_all_its_positions_a_finite_gradient(name):
    at, loss, acceptance_S = scored(name, Weighting.SURVIVAL)
    loss.backward()
    assert math.isfinite(loss.item())
    assert at.logits_NV.grad.isfinite().all()
    assert at.logits_NV.grad.abs().sum() > 0
    assert not acceptance_S.requires_grad


def test_committed_labels_alone_need_no_teacher():
    assert set(OBJECTIVES) == set(Objective)
    assert [name for name, spec in OBJECTIVES.items() if not spec.needs_teacher] == [Objective.COMMITTED]
