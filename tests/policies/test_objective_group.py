"""The group tree objective on chains against loops over rows, groups and steps in float64."""

import itertools
import math

import numpy as np
import pytest
import torch
from paceline.policies.objectives.baselines.group import best_token_probs, chain_rewards, group_advantages, group_losses

B, Q, S = 2, 5, 3
RNG = np.random.default_rng(4)
AGREES = RNG.uniform(size=(B, Q, S)) < 0.7
PROBS = RNG.uniform(size=(B, Q, S))
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=bool)


def rewards() -> np.ndarray:
    out = np.zeros((B, Q))
    for b, q in itertools.product(range(B), range(Q)):
        for s in range(S):
            out[b, q] += PROBS[b, q, s]
            if not AGREES[b, q, s]:
                break
    return out


def advantages(gains: np.ndarray, rows: int) -> np.ndarray:
    out = np.zeros((B, Q))
    for b, begin in itertools.product(range(B), range(0, Q, rows)):
        group = [q for q in range(begin, min(begin + rows, Q)) if MASK[b, q]]
        mean = sum(gains[b, q] for q in group) / max(len(group), 1)
        deviation = math.sqrt(sum((gains[b, q] - mean) ** 2 for q in group) / max(len(group), 1))
        for q in group:
            out[b, q] = (gains[b, q] - mean) / max(deviation, 1e-6)
    return out


def test_a_chain_is_rewarded_until_the_first_disagreement_and_there_for_the_last_time():
    got = chain_rewards(torch.tensor(AGREES), torch.tensor(PROBS))
    np.testing.assert_allclose(got, rewards(), rtol=1e-12)


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_advantages_are_standardised_within_adjacent_rows_of_one_trace(rows):
    gains = RNG.normal(size=(B, Q))
    got = group_advantages(torch.tensor(gains), torch.tensor(MASK), rows)
    np.testing.assert_allclose(got, advantages(gains, rows), atol=1e-12)


def test_a_group_that_gains_alike_has_no_advantage():
    assert group_advantages(torch.full((1, 4), 0.3), torch.ones(1, 4, dtype=torch.bool), 4).abs().max() < 1e-6


def surrogate(logq, frozen, worth) -> np.ndarray:
    out = np.zeros((B, Q))
    for b, q in itertools.product(range(B), range(Q)):
        length = 0
        while length < S and AGREES[b, q, length]:
            length += 1
        if length:
            mean = sum(logq[b, q, s] - frozen[b, q, s] for s in range(length)) / length
            ratio = math.exp(mean)
            out[b, q] = -min(ratio * worth[b, q], max(0.8, min(1.2, ratio)) * worth[b, q])
    return out


def test_the_surrogate_and_its_gradient_equal_the_loops():
    rng = np.random.default_rng(12)
    logq, frozen, worth = rng.normal(size=(B, Q, S)) - 1, rng.normal(size=(B, Q, S)) - 1, rng.normal(size=(B, Q))
    unclipped = group_losses(*map(torch.tensor, (logq, frozen, AGREES, worth)), clip=50.0)
    assert (unclipped.numpy() != surrogate(logq, frozen, worth)).sum() >= 2  # the clip binds on some rows
    leaf = torch.tensor(logq, requires_grad=True)
    losses_BQ = group_losses(leaf, torch.tensor(frozen), torch.tensor(AGREES), torch.tensor(worth))
    np.testing.assert_allclose(losses_BQ.detach(), surrogate(logq, frozen, worth), rtol=1e-12)
    losses_BQ.sum().backward()
    nudge = 1e-6
    for index in np.ndindex(B, Q, S):
        sides = []
        for sign in (1, -1):
            moved = logq.copy()
            moved[index] += sign * nudge
            sides.append(surrogate(moved, frozen, worth).sum())
        assert leaf.grad[index].item() == pytest.approx((sides[0] - sides[1]) / (2 * nudge), abs=1e-8)


def test_over_all_committed_texts_the_reward_is_the_sum_of_the_targets_prefix_probabilities():
    vocab = 3
    rng = np.random.default_rng(9)
    prefixes = [prefix for n in range(S) for prefix in itertools.product(range(vocab), repeat=n)]
    p = {prefix: rng.dirichlet(np.ones(vocab)) for prefix in prefixes}
    best = {prefix: int(rng.integers(vocab)) for prefix in prefixes}
    chain: tuple[int, ...] = ()
    expected, prefix_prob = 0.0, 1.0
    for _ in range(S):
        prefix_prob *= p[chain][best[chain]]
        expected += prefix_prob
        chain = (*chain, best[chain])
    mean = 0.0
    for text in itertools.product(range(vocab), repeat=S):
        agrees = torch.tensor([[[best[text[:s]] == text[s] for s in range(S)]]])
        seen = torch.tensor([[[p[text[:s]][best[text[:s]]] for s in range(S)]]])
        chance = math.prod(p[text[:s]][text[s]] for s in range(S))
        mean += chance * chain_rewards(agrees, seen).item()
    assert mean == pytest.approx(expected, rel=1e-12)


def test_the_best_token_has_the_teachers_probability_or_none():
    logits = torch.tensor([[0.0, 3.0, 1.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    got = best_token_probs(logits, torch.tensor([[1, 2], [1, 2]]), torch.tensor([[0.7, 0.3], [0.6, 0.4]]))
    assert got.tolist() == pytest.approx([0.7, 0.0])
