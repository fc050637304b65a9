"""REINFORCE on flags: the mean over all proposals and flags of two rounds is J's exact gradient."""

import itertools
import math

import numpy as np
import pytest
import torch
from paceline.policies.objectives.baselines.reinforce import leave_one_out_baselines, reinforce_losses

V, S, R = 3, 2, 2
PREFIXES = [prefix for n in range(S) for prefix in itertools.product(range(V), repeat=n)]
KEYS = [(r, prefix) for r in range(R) for prefix in PREFIXES]
RNG = np.random.default_rng(8)
LOGITS = {key: RNG.normal(size=V) for key in KEYS}
OLD_LOGITS = {key: RNG.normal(size=V) for key in KEYS}
STANDS = {key: RNG.uniform(size=V) for key in KEYS}  # the chance that a token is accepted: p of it, or 0 and 1


def softmax(logits) -> list[float]:
    return [math.exp(x) / sum(math.exp(y) for y in logits) for x in logits]


def exact(logits) -> float:
    """J of all rounds, summed over every path."""
    total = 0.0
    for r, length in itertools.product(range(R), range(1, S + 1)):
        for path in itertools.product(range(V), repeat=length):
            total += math.prod(softmax(logits[r, path[:i]])[a] * STANDS[r, path[:i]][a] for i, a in enumerate(path))
    return total


def outcomes(r: int, proposer) -> list[tuple[float, tuple[int, ...], int]]:
    """Everything round r may show: its chance, the judged proposals, how many were accepted."""
    found, alive = [], [(1.0, ())]
    for _ in range(S):
        grown = []
        for chance, path in alive:
            for a in range(V):
                drawn = chance * softmax(proposer[r, path])[a]
                found.append((drawn * (1 - STANDS[r, path][a]), (*path, a), len(path)))
                grown.append((drawn * STANDS[r, path][a], (*path, a)))
        alive = grown
    return found + [(chance, path, S) for chance, path in alive]


def as_tensors(leaves, paths, accepted):
    judged_RS = torch.tensor([[i < len(path) for i in range(S)] for path in paths])
    accepted_RS = torch.tensor([[i < count for i in range(S)] for count in accepted])
    rows = []
    for r, path in enumerate(paths):
        said = [leaves[r, path[:i]].log_softmax(0)[path[i]] for i in range(len(path))]
        # Steps after the judged ones hold rubbish, which must not be read.
        rows.append(torch.stack(said + [torch.full((), float("nan")).double()] * (S - len(path))))
    return torch.stack(rows), judged_RS, accepted_RS


@pytest.mark.parametrize("proposer", [LOGITS, OLD_LOGITS], ids=["on its own drafts", "on another version's drafts"])
def test_the_mean_over_all_outcomes_is_minus_j_and_its_gradient(proposer):
    leaves = {key: torch.tensor(x, requires_grad=True) for key, x in LOGITS.items()}
    old = {key: torch.tensor(x) for key, x in proposer.items()}
    total, mass = torch.zeros(()).double(), 0.0
    for (c0, path0, n0), (c1, path1, n1) in itertools.product(outcomes(0, proposer), outcomes(1, proposer)):
        logq_RS, judged_RS, accepted_RS = as_tensors(leaves, (path0, path1), (n0, n1))
        logq_old_RS, _, _ = as_tensors(old, (path0, path1), (n0, n1))
        mass += c0 * c1
        total = total + c0 * c1 * reinforce_losses(logq_RS, logq_old_RS, judged_RS, accepted_RS, math.inf).sum()
    total.backward()
    assert mass == pytest.approx(1.0)
    assert -total.item() == pytest.approx(exact(LOGITS), rel=1e-12)
    nudge = 1e-6
    for key, v in itertools.product(KEYS, range(V)):
        sides = []
        for sign in (1, -1):
            moved = {k: x.copy() for k, x in LOGITS.items()}
            moved[key][v] += sign * nudge
            sides.append(exact(moved))
        assert -leaves[key].grad[v].item() == pytest.approx((sides[0] - sides[1]) / (2 * nudge), abs=1e-8)


def rounds_of(seed: int, rounds: int, steps: int):
    rng = np.random.default_rng(seed)
    accepted = rng.integers(0, steps + 1, rounds)
    judged_RS = np.arange(steps) <= accepted[:, None]
    return rng.normal(-1, 1, (rounds, steps)), rng.normal(-1, 1, (rounds, steps)), judged_RS, accepted


@pytest.mark.parametrize("seed", range(4))
def test_values_and_gradients_equal_loops_with_the_ratio_cut_off(seed):
    logq, old, judged, accepted = rounds_of(seed, 5, 4)
    leaf = torch.tensor(logq, requires_grad=True)
    flags = torch.tensor(np.arange(4) < accepted[:, None])
    losses_R = reinforce_losses(leaf, torch.tensor(old), torch.tensor(judged), flags, clip=1.5)
    losses_R.sum().backward()
    for r in range(5):
        cut = [min(1.5, math.exp(sum(logq[r, m] - old[r, m] for m in range(j + 1)))) for j in range(4)]
        assert losses_R[r].item() == pytest.approx(-sum(cut[j] for j in range(accepted[r])), rel=1e-9)
        for i in range(4):
            others = [max(accepted[o] - i, 0) for o in range(5) if o != r and judged[o, i]]
            baseline = sum(others) / len(others) if others else 0.0
            advantage = sum(cut[j] for j in range(i, accepted[r])) - cut[i] * baseline
            assert leaf.grad[r, i].item() == pytest.approx(-advantage if judged[r, i] else 0.0, abs=1e-6)


def test_a_baseline_is_what_the_others_earned_and_never_the_rounds_own():
    judged = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    accepted = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    assert leave_one_out_baselines(judged, accepted).tolist() == [[0.5, 0.0, 0.0], [1.5, 2.0, 1.0], [2.0, 1.0, 1.0]]


def test_a_single_round_has_no_baseline_and_no_round_costs_nothing():
    yes = torch.ones(1, 2, dtype=torch.bool)
    assert leave_one_out_baselines(yes, yes).tolist() == [[0.0, 0.0]]
    assert reinforce_losses(torch.zeros(0, 2), torch.zeros(0, 2), yes[:0], yes[:0]).sum().item() == 0.0
