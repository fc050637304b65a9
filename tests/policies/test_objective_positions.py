"""Losses of single positions against loops over the whole vocabulary in float64, gradients by finite differences."""

import math

import numpy as np
import pytest
import torch
from paceline.policies.objectives.acceptance import matched_log_accepts, rejection_log_accepts, target_only_log_accepts
from paceline.policies.objectives.baselines.divergence import TAIL_FLOOR, jensen_shannon_losses, reverse_kl_losses
from paceline.policies.objectives.baselines.forward_kl import accepted_weights, selective_losses, wrong_position_losses
from paceline.policies.objectives.baselines.overlap import (
    ce_l1_losses,
    kl_divergences,
    lk_mix_losses,
    tvd_plus_plus_losses,
)
from paceline.policies.objectives.losses import soft_losses

V, N = 6, 5
#: A usual teacher; one sure of a token; one whose last entry is padding that repeats an id; a flat one; a lopsided one.
IDS = np.array([[4, 0, 2], [3, 1, 5], [5, 2, 5], [0, 1, 2], [1, 4, 3]])
PROBS = np.array([[0.6, 0.3, 0.1], [1.0, 0.0, 0.0], [0.7, 0.3, 0.0], [0.34, 0.33, 0.33], [0.98, 0.01, 0.01]])
COMMITTED = np.array([4, 3, 2, 5, -1])
STEPS = np.array([0, 1, 0, 2, 1])
RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(N, V)) * 1.5
REFERENCE = RNG.normal(size=(N, V)) * 1.5
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


def kl(p, q) -> float:
    return sum(p[v] * math.log(p[v] / q[v]) for v in range(V) if p[v] > 0)


def reverse_kl(p, q) -> float:
    rest = sum(q[v] for v in range(V) if p[v] == 0)
    shown = sum(q[v] * math.log(q[v] / ((1 - TAIL_FLOOR) * p[v])) for v in range(V) if p[v] > 0)
    return shown + rest * math.log(rest / TAIL_FLOOR)


def jensen_shannon(p, q, beta) -> float:
    middle = [beta * p[v] + (1 - beta) * q[v] for v in range(V)]
    return beta * kl(p, middle) + (1 - beta) * kl(q, middle)


def lk_mix(logits, fixed) -> list[float]:
    out = []
    for n in range(N):
        alike = [m for m in range(N) if STEPS[m] == STEPS[n]]
        alpha = sum(overlap(teacher(m), softmax(fixed[m])) for m in alike) / len(alike)
        p, q, share = teacher(n), softmax(logits[n]), math.exp(-3.0 * alpha)
        out.append(share * kl(p, q) + (1 - share) * (1 - overlap(p, q)))
    return out


def selective(logits, fixed) -> list[float]:
    gaps = [
        cross_entropy(teacher(n), softmax(fixed[n])) - cross_entropy(teacher(n), softmax(REFERENCE[n]))
        for n in range(N)
    ]
    kept = sorted(range(N), key=lambda n: -gaps[n])[:2]  # 0.4 of five
    return [cross_entropy(teacher(n), softmax(logits[n])) / 0.4 if n in kept else 0.0 for n in range(N)]


def wrong(logits, fixed) -> list[float]:
    best = [max(range(V), key=lambda v: fixed[n][v]) for n in range(N)]
    assert {bool(best[n] == COMMITTED[n]) for n in range(N)} == {True, False}
    return [cross_entropy(teacher(n), softmax(logits[n])) * (best[n] != COMMITTED[n]) for n in range(N)]


def ce_l1(logits, _fixed) -> list[float]:
    out = []
    for n in range(N):
        p, q = teacher(n), softmax(logits[n])
        distance = sum(abs(p[v] - q[v]) for v in range(V))
        out.append(0.9 * distance - (0.1 * math.log(q[COMMITTED[n]]) if COMMITTED[n] >= 0 else 0.0))
    return out


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
    "kl": (kl_divergences, each(kl)),
    "soft": (lambda x, i, p: soft_losses(x, i, p)[0], each(cross_entropy)),
    "reverse_kl": (reverse_kl_losses, each(reverse_kl)),
    "jensen_shannon": (jensen_shannon_losses, each(lambda p, q: jensen_shannon(p, q, 0.5))),
    "jensen_shannon 0.2": (
        lambda x, i, p: jensen_shannon_losses(x, i, p, beta=0.2),
        each(lambda p, q: jensen_shannon(p, q, 0.2)),
    ),
    "lk_mix": (lambda x, i, p: lk_mix_losses(x, i, p, T(STEPS)), lk_mix),
    "ce_l1": (lambda x, i, p: ce_l1_losses(x, T(COMMITTED), i, p), ce_l1),
    "selective": (lambda x, i, p: selective_losses(x, T(REFERENCE), i, p), selective),
    "wrong": (lambda x, i, p: wrong_position_losses(x, T(COMMITTED), i, p), wrong),
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


def test_tvd_plus_plus_is_the_total_variation_with_the_standardised_policy_gradient():
    leaf = torch.tensor(LOGITS, requires_grad=True)
    losses_N = tvd_plus_plus_losses(leaf, T(IDS), T(PROBS))
    losses_N.sum().backward()
    q = [softmax(LOGITS[n]) for n in range(N)]
    distances = [sum(abs(teacher(n)[v] - q[n][v]) for v in range(V)) / 2 for n in range(N)]
    np.testing.assert_allclose(losses_N.detach(), distances, rtol=1e-9)
    reward = [[float(teacher(n)[v] > q[n][v]) for v in range(V)] for n in range(N)]
    mean = sum(q[n][v] * reward[n][v] for n in range(N) for v in range(V)) / N
    variance = sum(q[n][v] * (reward[n][v] - mean) ** 2 for n in range(N) for v in range(V)) / N
    slopes = np.zeros((N, V))
    for n in range(N):
        for x in range(V):
            advantage = (reward[n][x] - mean) / math.sqrt(variance)
            for j in range(V):
                slopes[n, j] -= q[n][x] * ((x == j) - q[n][j]) * advantage
    np.testing.assert_allclose(leaf.grad.numpy(), slopes, atol=1e-12)


def test_a_greedy_teacher_makes_all_rules_the_committed_loss():
    logits, ids, probs = T(LOGITS), T(IDS), torch.tensor([[1.0, 0.0, 0.0]]).double().expand(N, -1)
    expected = [-math.log(softmax(LOGITS[n])[IDS[n][0]]) for n in range(N)]
    for log_accepts in (target_only_log_accepts, rejection_log_accepts):
        np.testing.assert_allclose(-log_accepts(logits, ids, probs), expected, rtol=1e-12)


def test_the_divergence_is_zero_where_nothing_can_be_said():
    assert kl_divergences(T(LOGITS), T(IDS), torch.zeros(N, 3).double()).tolist() == [0.0] * N


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


def test_a_draft_that_repeats_the_teacher_has_no_divergence_left():
    whole = RNG.dirichlet(np.ones(V))[None]
    args = T(np.log(whole)), torch.arange(V)[None], T(whole)
    assert kl_divergences(*args).item() == pytest.approx(0.0, abs=1e-12)
    assert jensen_shannon_losses(*args).item() == pytest.approx(0.0, abs=1e-6)
    assert reverse_kl_losses(*args).item() == pytest.approx(-math.log(1 - TAIL_FLOOR), abs=1e-5)
    assert rejection_log_accepts(*args).item() == pytest.approx(0.0, abs=1e-12)


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
    for compute in (reverse_kl_losses, jensen_shannon_losses, tvd_plus_plus_losses, rejection_log_accepts):
        assert compute(torch.zeros(0, V), torch.zeros(0, 3).long(), torch.zeros(0, 3)).shape == (0,)
    none, ids, probs = torch.zeros(0, V), torch.zeros(0, 3).long(), torch.zeros(0, 3)
    assert lk_mix_losses(none, ids, probs, torch.zeros(0).long()).shape == (0,)
    assert selective_losses(none, none, ids, probs).shape == (0,)
    assert ce_l1_losses(none, torch.zeros(0).long(), ids, probs).shape == (0,)


def test_accepted_weights_give_every_draft_step_its_own_mean():
    mask = torch.tensor([[[True, True, False], [True, False, False]], [[True, True, False], [False, False, False]]])
    losses = torch.tensor(RNG.normal(size=mask.shape))
    weights = accepted_weights(torch.zeros(mask.shape).double(), mask, rounds=4)
    got = (losses * weights * mask).sum().item() / 4
    expected = sum(0.8**i * losses[..., i][mask[..., i]].mean().item() for i in range(2))
    assert got == pytest.approx(expected, rel=1e-12)
