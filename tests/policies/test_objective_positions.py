"""Losses of single positions against loops over the whole vocabulary in float64, gradients by finite differences."""

import math

import numpy as np
import pytest
import torch
from paceline.policies.objectives.acceptance import matched_log_accepts, rejection_log_accepts, target_only_log_accepts
from paceline.policies.objectives.losses import soft_losses

V, N = 6, 5
#: A usual teacher; one sure of a token; one whose last entry is padding that repeats an id; a flat one; a lopsided one.
IDS = np.array([[4, 0, 2], [3, 1, 5], [5, 2, 5], [0, 1, 2], [1, 4, 3]])
PROBS = np.array([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0], [0.7, 0.3, 0.0], [0.34, 0.33, 0.33], [0.98, 0.01, 0.01]])
RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(N, V)) * 1.5
IS_REJECTION = np.array([True, False, False, True, True])


def softmax(logits) -> list[float]:
    top = max(logits)
    return [math.exp(x - top) / sum(math.exp(y - top) for y in logits) for x in logits]


def teacher(n: int) -> list[float]:
    whole = [0.0] * V
    for token, prob in zip(IDS[n], PROBS[n], strict=True):
        whole[token] += prob
    return whole


def product(p, q) -> float:
    return sum(p[v] * q[v] for v in range(V))


def overlap(p, q) -> float:
    return sum(min(p[v], q[v]) for v in range(V))


def cross_entropy(p, q) -> float:
    return -sum(p[v] * math.log(q[v]) for v in range(V) if p[v] > 0)


def each(measure):
    """An oracle of all positions from one of a position's teacher and draft."""
    return lambda logits, _fixed: [measure(teacher(n), softmax(logits[n])) for n in range(N)]


def matched(logits, _fixed) -> list[float]:
    rules = [overlap if IS_REJECTION[n] else product for n in range(N)]
    return [-math.log(rules[n](teacher(n), softmax(logits[n]))) for n in range(N)]


T = torch.tensor
#: What is computed from logits, and the loops for it; the loops' second argument is what weights are held at.
LOSSES = {
    "target_only": (lambda x, i, p: -target_only_log_accepts(x, i, p), each(lambda p, q: -math.log(product(p, q)))),
    "rejection": (lambda x, i, p: -rejection_log_accepts(x, i, p), each(lambda p, q: -math.log(overlap(p, q)))),
    "matched": (lambda x, i, p: -matched_log_accepts(x, i, p, T(IS_REJECTION)), matched),
    "soft": (lambda x, i, p: soft_losses(x, i, p)[0], each(cross_entropy)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_position_costs_what_the_formula_says(name):
    compute, oracle = LOSSES[name]
    np.testing.assert_allclose(compute(T(LOGITS), T(IDS), T(PROBS)), oracle(LOGITS, LOGITS), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_finite_differences_with_what_has_none_held(name):
    compute, oracle = LOSSES[name]
    leaf = torch.tensor(LOGITS, requires_grad=True)
    compute(leaf, T(IDS), T(PROBS)).sum().backward()
    nudge, slopes = 1e-6, np.zeros((N, V))
    for index in np.ndindex(N, V):
        sides = []
        for sign in (1, -1):
            moved = LOGITS.copy()
            moved[index] += sign * nudge
            sides.append(sum(oracle(moved, LOGITS)))
        slopes[index] = (sides[0] - sides[1]) / (2 * nudge)
    np.testing.assert_allclose(leaf.grad.numpy(), slopes, atol=2e-8)


def test_a_greedy_teacher_makes_all_rules_the_committed_loss():
    logits, ids, probs = T(LOGITS), T(IDS), torch.tensor([[1.0, 0.0, 0.0]]).double().expand(N, -1)
    expected = [-math.log(softmax(LOGITS[n])[IDS[n][0]]) for n in range(N)]
    for log_accepts in (target_only_log_accepts, rejection_log_accepts):
        np.testing.assert_allclose(-log_accepts(logits, ids, probs), expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_missing_tail_moves_the_overlap_by_no_more_than_its_mass(seed):
    rng = np.random.default_rng(seed)
    p, q = np.sort(rng.dirichlet(np.ones(V)))[::-1], rng.dirichlet(np.ones(V))
    shown = p[:3] / p[:3].sum()
    whole, cut = (
        rejection_log_accepts(T(np.log(q))[None], torch.arange(len(x))[None], T(x.copy())[None]).exp().item()
        for x in (p, shown)
    )
    assert abs(whole - cut) <= p[3:].sum() + 1e-12
    # Under target_only the gradient is that of the entries shown, however they are scaled.
    slopes = []
    for scale in (1.0, p[:3].sum()):
        leaf = torch.tensor(np.log(q)[None], requires_grad=True)
        target_only_log_accepts(leaf, torch.arange(3)[None], T(shown * scale)[None]).sum().backward()
        slopes.append(leaf.grad)
    torch.testing.assert_close(*slopes)


def test_losses_and_gradients_stay_finite_for_a_draft_sure_of_a_token_the_teacher_never_says():
    for name, (compute, _) in LOSSES.items():
        leaf = torch.zeros(N, V, dtype=torch.float32)
        leaf[:, 5] = 60.0
        leaf.requires_grad_()
        losses = compute(leaf, T(IDS), torch.tensor(PROBS, dtype=torch.float32))
        losses.sum().backward()
        assert losses.isfinite().all(), name
        assert leaf.grad.isfinite().all(), name


def test_losses_of_no_position_are_empty():
    none, ids, probs = torch.zeros(0, V), torch.zeros(0, 3).long(), torch.zeros(0, 3)
    for compute in (rejection_log_accepts, target_only_log_accepts):
        assert compute(none, ids, probs).shape == (0,)
