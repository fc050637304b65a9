"""Sampled verification on the CPU: against slow walks written from the rules, SGLang's own kernel, and chi-square.

A chain of three drafts over a tiny vocabulary; target and draft are Markov chains, so that every node has its own
distribution and the probability of every text can be written down. All coins come from seeded generators.
"""

import importlib.util
import itertools
import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from paceline.policies.objectives.losses import served_probs
from safetensors.torch import load_file, save_file
from scipy.stats import binomtest, chisquare

STEPS = 3
NODES = STEPS + 1
SURPRISE = 1e-4  # a p-value below it is a difference
LINKS = ("retrive_index", "retrive_next_token", "retrive_next_sibling")
CHAIN = (-1, 0, 1, 2)
ONE_BELOW = 1.0 - 2**-24  # the largest coin


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def distributions(*shape, seed, sharpness=1.5):
    return (sharpness * torch.randn(*shape, generator=seeded(seed))).softmax(-1)


def tree_links(parents, batch):
    """Links of `batch` equal trees, siblings in ascending order, global node numbers in the first."""
    children = [[c for c, p in enumerate(parents) if p == node] for node in range(len(parents))]
    sibling = [-1] * len(parents)
    for family in children:
        for left, right in itertools.pairwise(family):
            sibling[left] = right
    index = torch.arange(batch * len(parents)).view(batch, -1)
    child = torch.tensor([family[0] if family else -1 for family in children])
    return index, child.expand(batch, -1), torch.tensor(sibling).expand(batch, -1)


def outputs(batch, nodes, depth):
    predicts = torch.full((batch * nodes,), -7, dtype=torch.int32)
    accept_index = torch.full((batch, depth), -1, dtype=torch.int32)
    return predicts, accept_index, torch.zeros(batch, dtype=torch.int32)


def verify(kernel, candidates, target, draft, coins, final, *, parents=CHAIN, depth=None, thresholds=(1.0, 1.0)):
    batch, nodes = candidates.shape
    made = outputs(batch, nodes, depth or nodes)
    kernel(
        predicts=made[0], accept_index=made[1], accept_token_num=made[2], candidates=candidates,
        **dict(zip(LINKS, tree_links(parents, batch), strict=True)),
        uniform_samples=coins, uniform_samples_for_final_sampling=final, target_probs=target, draft_probs=draft,
        threshold_single=thresholds[0], threshold_acc=thresholds[1], deterministic=True,
    )  # fmt: skip
    return made


def committed(made):
    """The tokens each request got: predicts along its accepted path, the target's own token last."""
    predicts, accept_index, accepted = made
    return [predicts[row[: n + 1].long()].tolist() for row, n in zip(accept_index, accepted.tolist(), strict=True)]


# Slow oracles, one request at a time.


def drawn_from(weights, coin):
    total, running = sum(weights), 0.0
    for token, weight in enumerate(weights):
        running += weight
        if running > coin * total:
            return token
    raise AssertionError(f"coin {coin} is no coin")


def slow_target_only(parents, tokens, target, coins, final, depth):
    """Path of nodes and committed tokens: at each node one coin picks a child, or the rest of p."""
    path, said = [0], []
    while True:
        here = path[-1]
        children = [c for c, p in enumerate(parents) if p == here] if len(path) < depth else []
        low, taken = 0.0, None
        for child in children:
            low += target[here][tokens[child]]
            if coins[here] < low:
                taken = child
                break
        if taken is None:
            refused = {tokens[child] for child in children}
            rest = [0.0 if token in refused else p for token, p in enumerate(target[here])]
            return path, [*said, drawn_from(rest, final)]
        path.append(taken)
        said.append(tokens[taken])


def slow_rejection(tokens, target, draft, coins, final):
    for step, token in enumerate(tokens[1:]):
        if coins[step] >= min(1.0, target[step][token] / draft[step][token]):
            rest = [max(p - q, 0.0) for p, q in zip(target[step], draft[step], strict=True)]
            return list(range(step + 1)), [*tokens[1 : step + 1], drawn_from(rest, final)]
    return list(range(len(tokens))), [*tokens[1:], drawn_from(target[len(tokens) - 1], final)]


@pytest.mark.parametrize("seed", range(8))
def test_target_only_walks_trees_as_the_slow_oracle_does(cpu_kernels, seed):
    rng, batch, vocab = random.Random(seed), 40, 7
    parents = [-1] + [rng.randrange(max(0, node - 3), node) for node in range(1, 9)]
    depth = rng.randint(2, 5)
    candidates = torch.tensor([tree_tokens(rng, parents, vocab) for _ in range(batch)])
    target = distributions(batch, len(parents), vocab, seed=seed)
    coins = torch.rand(batch, len(parents), generator=seeded(seed + 100))
    final = torch.rand(batch, generator=seeded(seed + 200))
    made = verify(
        cpu_kernels.tree_speculative_sampling_target_only, candidates, target, torch.zeros_like(target), coins, final,
        parents=parents, depth=depth,
    )  # fmt: skip
    lengths = set()
    for b, said in enumerate(committed(made)):
        path, tokens = slow_target_only(
            parents, candidates[b].tolist(), target[b].tolist(), coins[b].tolist(), float(final[b]), depth
        )
        padding = [-1] * (depth - len(path))
        assert made[1][b].tolist() == [b * len(parents) + node for node in path] + padding
        assert (said, int(made[2][b])) == (tokens, len(path) - 1)
        lengths.add(len(path))
    assert len(lengths) > 1
    on_path = {int(node) for node in made[1].flatten() if node >= 0}
    assert all(int(token) == -7 for node, token in enumerate(made[0]) if node not in on_path)


def tree_tokens(rng, parents, vocab):
    """A token per node, siblings different."""
    tokens = [rng.randrange(vocab)]
    for node in range(1, len(parents)):
        taken = {tokens[n] for n in range(1, node) if parents[n] == parents[node]}
        tokens.append(rng.choice([t for t in range(vocab) if t not in taken]))
    return tokens


def chain_case(seed, batch=60, vocab=6):
    target, draft = distributions(batch, NODES, vocab, seed=seed), distributions(batch, STEPS, vocab, seed=seed + 1)
    root = torch.zeros(batch, 1, dtype=torch.int64)
    drafted = torch.stack(
        [torch.multinomial(draft[:, i], 1, generator=seeded(seed + i))[:, 0] for i in range(STEPS)], 1
    )
    coins, final = torch.rand(batch, NODES, generator=seeded(seed + 9)), torch.rand(batch, generator=seeded(seed + 10))
    return torch.cat([root, drafted], 1), target, draft, coins, final


@pytest.mark.parametrize("seed", range(8))
def test_rejection_walks_chains_as_the_slow_oracle_does(cpu_kernels, seed):
    case = chain_case(seed)
    made = verify(cpu_kernels.chain_speculative_sampling_cpu, *case)
    lengths = set()
    for b, said in enumerate(committed(made)):
        path, tokens = slow_rejection(*(part[b].tolist() for part in case))
        assert made[1][b].tolist() == [b * NODES + node for node in path] + [-1] * (NODES - len(path))
        assert (said, int(made[2][b])) == (tokens, len(path) - 1)
        lengths.add(len(path))
    assert len(lengths) > 2


REFERENCE = """
import importlib.util, sys, torch
from safetensors.torch import load_file, save_file
spec = importlib.util.spec_from_file_location("reference", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
case = load_file(sys.argv[2])
index, batch, nodes = case.pop("index"), *case["candidates"].shape
made = {"predicts": torch.full((batch * nodes,), -7, dtype=torch.int32),
        "accept_index": torch.full((batch, nodes), -1, dtype=torch.int32),
        "accept_token_num": torch.zeros(batch, dtype=torch.int32)}
module.chain_speculative_sampling_triton(**made, **case, retrive_index=index, retrive_next_token=index,
    retrive_next_sibling=index, threshold_single=1.0, threshold_acc=1.0, deterministic=True)
save_file(made, sys.argv[3])
"""


def test_rejection_equals_sglang_s_triton_kernel_in_triton_s_interpreter(cpu_kernels, tmp_path):
    sglang = importlib.util.find_spec("sglang")
    if sglang is None or importlib.util.find_spec("triton") is None:
        pytest.skip("SGLang or Triton is not installed")
    source = Path(sglang.origin).parent / "kernels/ops/speculative/reject_sampling.py"
    candidates, target, draft, coins, final = chain_case(5, batch=96)
    draft[::7] *= -1  # what a broken drafter may propose
    draft[3::7] = float("nan")
    case = {"candidates": candidates, "target_probs": target, "draft_probs": draft, "uniform_samples": coins}
    case |= {"uniform_samples_for_final_sampling": final, "index": torch.arange(96 * NODES).view(96, NODES)}
    save_file(case, tmp_path / "case")
    subprocess.run(
        [sys.executable, "-c", REFERENCE, str(source), str(tmp_path / "case"), str(tmp_path / "made")],
        env={**os.environ, "TRITON_INTERPRET": "1"}, check=True, timeout=600,
    )  # fmt: skip
    theirs = load_file(tmp_path / "made")
    ours = verify(cpu_kernels.chain_speculative_sampling_cpu, candidates, target, draft, coins, final)
    for name, made in zip(("predicts", "accept_index", "accept_token_num"), ours, strict=True):
        assert theirs[name].tolist() == made.tolist()


# Distributions.


def drafted_by(rule, draft_VV, root, generator):
    """A chain of tokens after each root, int64[B, NODES], and the q each came from, [B, STEPS, V]."""
    tokens, rows = [root], []
    for _ in range(STEPS):
        q_BV = draft_VV[tokens[-1]]
        sampled = torch.multinomial(q_BV, 1, generator=generator)[:, 0]
        tokens.append(sampled if rule == "rejection" else q_BV.argmax(-1))
        rows.append(q_BV)
    return torch.stack(tokens, 1), torch.stack(rows, 1)


def one_round(cpu_kernels, rule, target_VV, draft_VV, root, generator, reported_q=None):
    tokens, q_BSV = drafted_by(rule, draft_VV, root, generator)
    coins = torch.rand(tokens.shape, generator=generator)
    final = torch.rand(len(tokens), generator=generator)
    if rule == "rejection":
        kernel, draft = cpu_kernels.chain_speculative_sampling_cpu, q_BSV if reported_q is None else reported_q(q_BSV)
    else:
        kernel, draft = cpu_kernels.tree_speculative_sampling_target_only, torch.zeros_like(target_VV[tokens])
    return verify(kernel, tokens, target_VV[tokens], draft, coins, final)


def texts(cpu_kernels, rule, target_VV, draft_VV, *, count, length, generator, reported_q=None):
    """`count` texts of `length` tokens after root 0, decoded in rounds; a round's tokens beyond the end are cut."""
    found = [[0] for _ in range(count)]
    while unfinished := [text for text in found if len(text) <= length]:
        roots = torch.tensor([text[-1] for text in unfinished])
        made = one_round(cpu_kernels, rule, target_VV, draft_VV, roots, generator, reported_q)
        for text, said in zip(unfinished, committed(made), strict=True):
            text.extend(said)
    return [tuple(text[1 : length + 1]) for text in found]


def p_value(found, target_VV, length):
    """Chi-square of `found` against the exact probability of every text; rare texts share a cell."""
    step, seen_by_text = target_VV.double().tolist(), Counter(found)
    expected = {
        text: len(found) * math.prod(step[a][b] for a, b in itertools.pairwise((0, *text)))
        for text in itertools.product(range(len(step)), repeat=length)
    }
    common = [text for text, mean in expected.items() if mean >= 8]
    seen, means = [seen_by_text[text] for text in common], [expected[text] for text in common]
    rest = len(found) - sum(means)
    assert rest >= 5
    return chisquare([*seen, len(found) - sum(seen)], [*means, rest]).pvalue


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", ["target_only", "rejection"])
def test_decoding_in_rounds_gives_every_text_its_probability_under_the_target(cpu_kernels, rule, seed):
    target, draft = distributions(4, 4, seed=seed, sharpness=1.0), distributions(4, 4, seed=50 + seed, sharpness=1.0)
    found = texts(cpu_kernels, rule, target, draft, count=6000, length=4, generator=seeded(seed))
    assert p_value(found, target, 4) > SURPRISE


def test_the_chi_square_sees_a_q_that_the_draft_was_not_drawn_from(cpu_kernels):
    target, draft = distributions(4, 4, seed=0, sharpness=1.0), distributions(4, 4, seed=50, sharpness=1.0)
    options = {"count": 4000, "length": 4, "generator": seeded(0), "reported_q": lambda q: torch.full_like(q, 0.25)}
    found = texts(cpu_kernels, "rejection", target, draft, **options)
    assert p_value(found, target, 4) < 1e-12


def test_a_tree_s_siblings_leave_the_distribution_of_the_next_token_alone(cpu_kernels):
    count, target = 6000, distributions(1, 1, 6, seed=3)
    candidates = torch.tensor([[0, 4, 2, 5]]).expand(count, -1)
    coins, final = torch.rand(count, NODES, generator=seeded(1)), torch.rand(count, generator=seeded(2))
    kernel, p = cpu_kernels.tree_speculative_sampling_target_only, target.expand(count, NODES, -1)
    made = verify(kernel, candidates, p, p, coins, final, parents=(-1, 0, 0, 0), depth=2)
    first = torch.tensor([said[0] for said in committed(made)])
    exact = target[0, 0].double()
    assert chisquare(first.bincount(minlength=6), count * exact / exact.sum()).pvalue > SURPRISE
    of_children = float(target[0, 0, [4, 2, 5]].sum())
    assert binomtest(int(made[2].sum()), count, of_children).pvalue > SURPRISE


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rule", ["target_only", "rejection"])
def test_drafts_are_accepted_as_often_as_the_rule_says(cpu_kernels, rule, seed):
    count, target, draft = 4000, distributions(5, 5, seed=seed), distributions(5, 5, seed=80 + seed)
    made = one_round(cpu_kernels, rule, target, draft, torch.zeros(count, dtype=torch.int64), seeded(seed))
    best = torch.nn.functional.one_hot(draft.argmax(-1), 5)
    overlap = (target * best if rule == "target_only" else torch.minimum(target, draft)).double()
    reached = torch.eye(5, dtype=torch.float64)[0]
    for depth in range(1, NODES):
        reached = reached @ overlap  # mass of all accepted paths of this depth, by their last token
        assert binomtest(int((made[2] >= depth).sum()), count, float(reached.sum())).pvalue > SURPRISE
    assert 0.0 < float(reached.sum()) < 1.0


# Odd cases.


@pytest.mark.parametrize("rule", ["target_only", "rejection"])
def test_a_greedy_request_in_a_sampled_batch_gets_what_greedy_verification_gives(cpu_kernels, rule):
    candidates, target, draft, coins, final = chain_case(11, vocab=3)
    choices = target.argmax(-1)
    one_hot = cpu_kernels.top_k_renorm_prob(target.flatten(0, 1), torch.ones(60 * NODES, dtype=torch.int32))
    kernel = cpu_kernels.tree_speculative_sampling_target_only
    if rule == "rejection":
        kernel = cpu_kernels.chain_speculative_sampling_cpu
    made = verify(kernel, candidates, one_hot.view_as(target), draft, coins, final)
    greedy = outputs(60, NODES, NODES)
    cpu_kernels.verify_tree_greedy_cpu(*greedy, candidates, *tree_links(CHAIN, 60), choices)
    assert [part.tolist() for part in made] == [part.tolist() for part in greedy]
    assert len(set(made[2].tolist())) > 2


def test_mass_lost_to_rounding_never_yields_an_impossible_token(cpu_kernels):
    p = torch.tensor([0.0, ONE_BELOW, 0.0]).expand(1, NODES, 3)
    coins, final = torch.full((1, NODES), ONE_BELOW), torch.tensor([ONE_BELOW])
    drafted = torch.tensor([[0, 1, 1, 1]])
    made = verify(cpu_kernels.tree_speculative_sampling_target_only, drafted, p, torch.zeros_like(p), coins, final)
    assert (committed(made), int(made[2])) == ([[1]], 0)


def test_a_draft_the_target_rules_out_is_refused_whatever_the_coin(cpu_kernels):
    p, drafted = torch.tensor([0.5, 0.0, 0.5]).expand(1, NODES, 3), torch.tensor([[0, 1, 0, 0]])
    coins, final = torch.zeros(1, NODES), torch.tensor([0.75])
    made = verify(cpu_kernels.tree_speculative_sampling_target_only, drafted, p, torch.zeros_like(p), coins, final)
    assert committed(made) == [[2]]


@pytest.mark.parametrize(
    ("thresholds", "coin", "accepted"),
    [((1.0, 1.0), 0.39, 3), ((1.0, 1.0), 0.41, 0), ((0.4, 1.0), 0.9, 3), ((1.0, 0.5), 0.79, 3), ((1.0, 0.5), 0.81, 0)],
)
def test_thresholds_loosen_target_only_as_sglang_s_do(cpu_kernels, thresholds, coin, accepted):
    p = torch.tensor([0.4, 0.35, 0.25]).expand(1, NODES, 3)
    made = verify(
        cpu_kernels.tree_speculative_sampling_target_only, torch.zeros(1, NODES, dtype=torch.int64), p,
        torch.zeros_like(p), torch.full((1, NODES), coin), torch.tensor([0.0]), thresholds=thresholds,
    )  # fmt: skip
    assert int(made[2]) == accepted


@pytest.mark.parametrize(
    ("top_k", "kept"), [(1, [0.0, 1.0, 0.0, 0.0]), (2, [0, 0.5, 0, 0.5]), (3, [0.25, 0.375, 0, 0.375]), (1 << 30, None)]
)
def test_top_k_keeps_the_most_probable_and_the_first_of_equals(cpu_kernels, top_k, kept):
    probs = torch.tensor([[0.2, 0.3, 0.2, 0.3]])
    made = cpu_kernels.top_k_renorm_prob(probs, torch.tensor([top_k], dtype=torch.int32))
    assert torch.allclose(made, probs if kept is None else torch.tensor([kept]), atol=1e-7)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.4, [0.0, 1.0, 0.0]), (0.5, [0.0, 1.0, 0.0]), (0.6, [0, 0.625, 0.375]), (0.9, [0.2, 0.5, 0.3]), (1.0, None)],
)
def test_top_p_keeps_the_fewest_that_reach_the_mass(cpu_kernels, top_p, kept):
    probs = torch.tensor([[0.2, 0.5, 0.3]])
    made = cpu_kernels.top_p_renorm_prob(probs, torch.tensor([top_p]))
    assert torch.allclose(made, probs if kept is None else torch.tensor([kept]), atol=1e-7)


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(0.7, 5, 0.8), (1.3, 40, 0.5), (0.4, 3, 1.0)])
def test_what_is_sampled_from_is_what_the_learner_is_taught(cpu_kernels, temperature, top_k, top_p):
    logits = 2 * torch.randn(20, 40, generator=seeded(4))
    rows = len(logits)
    probs = cpu_kernels.top_k_renorm_prob((logits / temperature).softmax(-1), torch.full((rows,), top_k))
    probs = cpu_kernels.top_p_renorm_prob(probs, torch.full((rows,), top_p))
    best_first, token = logits.log_softmax(-1).sort(dim=-1, descending=True)
    taught = served_probs(best_first, temperature, top_k, top_p)
    assert torch.allclose(probs.gather(1, token), taught, atol=1e-6)
    assert int((probs > 0).sum(-1).max()) <= top_k
