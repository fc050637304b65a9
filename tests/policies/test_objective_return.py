"""-J and -log J: averaged over every committed text, what one text shows is J itself, and so is its gradient."""

import itertools
import math

import numpy as np
import pytest
import torch
from paceline.policies.objectives.acceptance import matched_log_accepts
from paceline.policies.objectives.baselines.expected_length import (
    expected_length_losses,
    log_expected_length_losses,
    log_follows,
)

V, S = 3, 3
PREFIXES = [prefix for n in range(S) for prefix in itertools.product(range(V), repeat=n)]
RNG = np.random.default_rng(5)
LOGITS = {prefix: RNG.normal(size=V) for prefix in PREFIXES}


def softmax(logits) -> list[float]:
    return [math.exp(x) / sum(math.exp(y) for y in logits) for x in logits]


def target(rule: str) -> dict[tuple[int, ...], list[float]]:
    """The target's distribution after every prefix; a greedy one is sure everywhere."""
    rng = np.random.default_rng(6)
    p = {prefix: rng.dirichlet(np.ones(V)).tolist() for prefix in PREFIXES}
    return {k: [float(x == max(v)) for x in v] for k, v in p.items()} if rule == "greedy" else p


def exact(logits, p, rule: str) -> float:
    """J, summed over every path a draft might take."""
    total = 0.0
    for length in range(1, S + 1):
        for path in itertools.product(range(V), repeat=length):
            chance = 1.0
            for i, token in enumerate(path):
                q = softmax(logits[path[:i]])[token]
                accept = min(1.0, p[path[:i]][token] / q) if rule == "rejection" else p[path[:i]][token]
                chance *= q * accept
            total += chance
    return total


def of_text(leaves, text, p, rule: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Log acceptances and log follows along one committed text, [1, 1, S] each."""
    prefixes = [text[:i] for i in range(S)]
    logits_NV = torch.stack([leaves[prefix] for prefix in prefixes])
    ids_NK, probs_NK = (
        torch.arange(V).expand(S, -1),
        torch.tensor([p[prefix] for prefix in prefixes], dtype=torch.float64),
    )
    rejection_N = torch.full((S,), rule == "rejection")
    log_accepts_N = matched_log_accepts(logits_NV, ids_NK, probs_NK, rejection_N)
    follows_N = log_follows(logits_NV, torch.tensor(text), ids_NK, probs_NK, rejection_N)
    return log_accepts_N[None, None], follows_N[None, None]


@pytest.mark.parametrize("rule", ["greedy", "target_only", "rejection"])
def test_the_mean_over_all_texts_is_j_and_its_gradient(rule):
    p = target(rule)
    leaves = {k: torch.tensor(v, requires_grad=True) for k, v in LOGITS.items()}
    total = torch.zeros(()).double()
    for text in itertools.product(range(V), repeat=S):
        chance = math.prod(p[text[:i]][text[i]] for i in range(S))
        if chance:
            total = total + chance * expected_length_losses(*of_text(leaves, text, p, rule)).sum()
    total.backward()
    assert -total.item() == pytest.approx(exact(LOGITS, p, rule), rel=1e-12)
    nudge = 1e-6
    for prefix, v in itertools.product(PREFIXES, range(V)):
        sides = []
        for sign in (1, -1):
            moved = {k: x.copy() for k, x in LOGITS.items()}
            moved[prefix][v] += sign * nudge
            sides.append(exact(moved, p, rule))
        slope = 0.0 if leaves[prefix].grad is None else leaves[prefix].grad[v].item()
        assert -slope == pytest.approx((sides[0] - sides[1]) / (2 * nudge), abs=1e-8)


@pytest.mark.parametrize("rule", ["target_only", "rejection"])
def test_minus_log_j_is_the_log_of_minus_j_and_so_is_its_gradient(rule):
    p, text = target(rule), (1, 0, 2)
    slopes, values = [], []
    for losses in (expected_length_losses, log_expected_length_losses):
        leaves = {k: torch.tensor(v, requires_grad=True) for k, v in LOGITS.items()}
        loss = losses(*of_text(leaves, text, p, rule)).sum()
        loss.backward()
        values.append(loss.item())
        slopes.append([leaves[text[:i]].grad for i in range(S)])
    assert values[1] == pytest.approx(-math.log(-values[0]), rel=1e-12)
    for plain, logged in zip(*slopes, strict=True):
        torch.testing.assert_close(logged, plain / -values[0])


def test_a_token_outside_the_vocabulary_or_not_shown_ends_the_path():
    logits_NV = torch.zeros(3, 4)
    ids_NK, probs_NK = torch.tensor([[0, 1], [0, 1], [0, 1]]), torch.tensor([[0.9, 0.1]] * 3)
    committed_N = torch.tensor([0, -1, 3])
    by_product = log_follows(logits_NV, committed_N, ids_NK, probs_NK, torch.tensor([False] * 3)).exp()
    assert by_product.tolist() == [0.25, 0.0, 0.25]
    by_overlap = log_follows(logits_NV, committed_N, ids_NK, probs_NK, torch.tensor([True] * 3)).exp()
    assert by_overlap.tolist() == pytest.approx([0.25 / 0.9, 0.0, 0.0])
    sure_of_it = log_follows(logits_NV, torch.tensor([1, 1, 1]), ids_NK, probs_NK, torch.tensor([True] * 3)).exp()
    assert sure_of_it.tolist() == [1.0] * 3


def test_positions_that_do_not_count_add_nothing_and_rows_without_a_first_one_cost_nothing():
    never = float("-inf")
    accepts = torch.tensor([[[0.5, 0.4, 0.3], [0.5, 0.0, 0.3], [0.0, 0.9, 0.9]]]).log().requires_grad_()
    follows = torch.tensor([[[0.2, 0.1, 0.9], [0.2, 0.0, 0.9], [0.0, 0.9, 0.9]]]).log()
    plain = expected_length_losses(accepts, follows)
    assert plain[0].tolist() == pytest.approx([-(0.5 + 0.2 * 0.4 + 0.02 * 0.3), -0.5, 0.0])
    logged = log_expected_length_losses(accepts, follows)
    assert logged[0].tolist() == pytest.approx([-math.log(0.586), -math.log(0.5), 0.0])
    (plain.sum() + logged.sum()).backward()
    assert accepts.grad.isfinite().all()
    assert (accepts.grad[accepts.detach() == never] == 0).all()
