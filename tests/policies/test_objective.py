"""The objective against loops over every trace, row, step and token in float64."""

import math

import numpy as np
import pytest
import torch
from paceline.policies.objectives.losses import (
    committed_losses,
    mean_acceptance,
    onto_grid,
    position_weights,
    served_probs,
    soft_losses,
    teacher_in_draft_vocabulary,
    weighted_loss,
)
from paceline.policies.objectives.names import Weighting

B, Q, S, V, K = 2, 3, 4, 6, 3
#: All steps scored, a label outside the vocabulary in between or in front, a trace that ends early, a padded row.
MASK = np.array(
    [
        [[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 0]],
        [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]],
    ],
    dtype=bool,
)
ROUNDS = 5


def softmax(logits: np.ndarray) -> list[float]:
    top = max(logits)
    return [math.exp(x - top) / sum(math.exp(y - top) for y in logits) for x in logits]


def oracle(logits, ids, probs, weighting, weights_of=None) -> tuple[float, np.ndarray]:
    """Scalar loss and acceptance by position; survival weights are those of `weights_of` (constants to a gradient)."""
    fixed = logits if weights_of is None else weights_of
    total, accepts = 0.0, np.zeros(MASK.shape)
    for b in range(B):
        for q in range(Q):
            survival = 1.0
            for s in range(S):
                weight = survival if weighting == "survival" else 0.8**s
                frozen = softmax(fixed[b, q, s])
                accept = sum(p * frozen[i] for p, i in zip(probs[b, q, s], ids[b, q, s], strict=True)) * MASK[b, q, s]
                survival *= accept
                accepts[b, q, s] = accept
                if MASK[b, q, s]:
                    live = softmax(logits[b, q, s])
                    for p, i in zip(probs[b, q, s], ids[b, q, s], strict=True):
                        total -= weight * p * math.log(live[i])
    return total / ROUNDS, accepts


def example(soft: bool):
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(B, Q, S, V))
    ids = np.array([rng.permutation(V)[:K] for _ in range(B * Q * S)]).reshape(B, Q, S, K)
    probs = rng.dirichlet(np.ones(K), size=(B, Q, S)) if soft else np.eye(K)[np.zeros((B, Q, S), int)]
    return logits, ids, probs


def computed(logits: torch.Tensor, ids, probs, weighting: Weighting, soft: bool):
    mask_BQS = torch.tensor(MASK)
    ids_NK, probs_NK = torch.tensor(ids)[mask_BQS], torch.tensor(probs)[mask_BQS]
    if soft:
        losses_N, log_accepts_N = soft_losses(logits[mask_BQS], ids_NK, probs_NK)
    else:
        losses_N = committed_losses(logits[mask_BQS], ids_NK[:, 0])
        log_accepts_N = -losses_N.detach()
    log_accepts_BQS = onto_grid(log_accepts_N, mask_BQS, float("-inf"))
    weights_BQS = position_weights(log_accepts_BQS, weighting)
    loss = weighted_loss(onto_grid(losses_N, mask_BQS, 0.0), weights_BQS, mask_BQS, ROUNDS)
    return loss, log_accepts_BQS


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weighting", list(Weighting))
def test_loss_and_acceptance_equal_the_loops(weighting, soft):
    logits, ids, probs = example(soft)
    loss, log_accepts_BQS = computed(torch.tensor(logits), ids, probs, weighting, soft)
    expected, accepts = oracle(logits, ids, probs, str(weighting))
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(log_accepts_BQS.exp().numpy(), accepts, rtol=1e-12)
    scored = np.maximum(MASK.sum((0, 1)), 1)
    np.testing.assert_allclose(mean_acceptance(log_accepts_BQS, torch.tensor(MASK)), accepts.sum((0, 1)) / scored)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weighting", list(Weighting))
def test_gradient_equals_finite_differences_with_the_weights_held(weighting, soft):
    logits, ids, probs = example(soft)
    leaf = torch.tensor(logits, requires_grad=True)
    computed(leaf, ids, probs, weighting, soft)[0].backward()
    nudge = 1e-6
    for index in np.ndindex(logits.shape):
        sides = []
        for sign in (1, -1):
            moved = logits.copy()
            moved[index] += sign * nudge
            sides.append(oracle(moved, ids, probs, str(weighting), weights_of=logits)[0])
        assert leaf.grad[index].item() == pytest.approx((sides[0] - sides[1]) / (2 * nudge), abs=1e-8)


def test_nothing_after_a_token_outside_the_draft_vocabulary_counts_under_survival():
    log_accepts_BQS = torch.tensor([[[-0.5, float("-inf"), -0.1, -0.1]]])
    assert position_weights(log_accepts_BQS, Weighting.SURVIVAL).tolist() == [
        [[1.0, pytest.approx(math.exp(-0.5)), 0, 0]]
    ]
    geometric = position_weights(log_accepts_BQS, Weighting.GEOMETRIC)
    assert geometric.flatten().tolist() == pytest.approx([1.0, 0.8, 0.64, 0.512])


def test_masked_positions_add_nothing_even_when_they_are_not_finite():
    losses = torch.tensor([[[1.0, float("nan")]], [[float("inf"), 2.0]]])
    mask = torch.tensor([[[True, False]], [[False, True]]])
    assert weighted_loss(losses, torch.ones(2, 1, 2), mask, 2).item() == 1.5
    assert weighted_loss(losses, torch.ones(2, 1, 2), torch.zeros(2, 1, 2, dtype=torch.bool), 0).item() == 0.0


def test_soft_loss_of_a_sure_teacher_is_the_committed_loss():
    logits, ids, probs = example(soft=False)
    flat = torch.tensor(logits).reshape(-1, V)
    ids_NK, probs_NK = torch.tensor(ids).reshape(-1, K), torch.tensor(probs).reshape(-1, K)
    losses_N, log_accepts_N = soft_losses(flat, ids_NK, probs_NK)
    torch.testing.assert_close(losses_N, committed_losses(flat, ids_NK[:, 0]))
    torch.testing.assert_close(log_accepts_N, -losses_N)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.8])
def test_served_probs_keep_the_ratios_of_the_whole_vocabulary_at_any_temperature(temperature):
    logits = np.sort(np.random.default_rng(0).normal(size=9) * 2)[::-1]
    whole = np.array(softmax(logits / temperature))
    logprobs = np.log(softmax(logits))[:4]
    got = served_probs(torch.tensor(logprobs.copy())[None], temperature)[0].numpy()
    np.testing.assert_allclose(got, whole[:4] / whole[:4].sum(), rtol=1e-6)


def test_served_probs_follow_top_k_and_then_top_p():
    logprobs = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert served_probs(logprobs, 1.0, top_k=2)[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert served_probs(logprobs, 1.0, top_p=0.6)[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert served_probs(logprobs, 1.0, top_k=3, top_p=0.5)[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert served_probs(logprobs, 1.0, top_p=0.1)[0].tolist() == pytest.approx([1, 0, 0, 0])


def test_teacher_tokens_outside_the_draft_vocabulary_give_their_share_to_the_others():
    target_to_draft_W = torch.tensor([-1, 2, 0, -1, 1])
    ids_NK = torch.tensor([[1, 0, 4], [0, 3, 0], [2, 3, 1]])
    probs_NK = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [1.0, 0.0, 0.0]])
    draft_ids, probs, has_label = teacher_in_draft_vocabulary(ids_NK, probs_NK, target_to_draft_W)
    assert draft_ids[0, [0, 2]].tolist() == [2, 1]
    assert probs[0].tolist() == pytest.approx([5 / 7, 0, 2 / 7])
    assert has_label.tolist() == [True, False, True]
    assert probs[1].tolist() == [0, 0, 0]
    assert probs[2].tolist() == [1, 0, 0]


def test_onto_grid_puts_values_back_in_row_major_order():
    mask = torch.tensor([[[True, False], [True, True]]])
    assert onto_grid(torch.tensor([1.0, 2.0, 3.0]), mask, -9.0).tolist() == [[[1.0, -9.0], [2.0, 3.0]]]
