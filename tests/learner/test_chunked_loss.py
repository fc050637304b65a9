"""The loss in chunks: values and gradients of every objective are those of all logits at once, whatever the chunks."""

import numpy as np
import pytest
import torch
from paceline.buffer.stream.trace import DraftTrace, Sampling, VerdictRule
from paceline.learner.model import draft as draft_module
from paceline.learner.model.logits import CHUNK_BYTES, positions_at_once, positions_per_chunk
from paceline.learner.training import chunked_loss
from paceline.learner.training.batch import collate
from paceline.learner.training.chunked_loss import row_chunks, summed_loss
from paceline.learner.training.scoring import score_batch
from paceline.policies.objectives.names import Objective, Weighting
from paceline.policies.objectives.spec import Labels, chains_of
from paceline.policies.objectives.table import OBJECTIVES
from peak_memory import peak_bytes

CPU = torch.device("cpu")
TRACES, ROWS, STEPS, HIDDEN, WORDS, ENTRIES, ROUNDS = 3, 4, 3, 5, 11, 3, 7


def random_mask(rng: np.random.Generator) -> torch.Tensor:
    """Which positions are scored; some rows none at all, some with a gap."""
    mask = rng.random((TRACES, ROWS, STEPS)) < rng.choice([0.0, 0.3, 0.7, 1.0])
    mask[:, rng.integers(ROWS)] = False
    return torch.from_numpy(mask)


def random_labels(rng: np.random.Generator, mask_BQS: torch.Tensor) -> Labels:
    trace_N, _, steps_N = mask_BQS.nonzero(as_tuple=True)
    count = len(steps_N)
    ids = np.array([rng.permutation(WORDS)[:ENTRIES] for _ in range(count)]).reshape(count, ENTRIES)
    probs = rng.dirichlet(np.ones(ENTRIES), count)
    probs[rng.random(count) < 0.3] = [1.0, 0.0, 0.0]  # as of a greedy request
    ids_NK = torch.from_numpy(ids.astype(np.int64))
    return Labels(
        committed_N=ids_NK[:, 0],
        ids_NK=ids_NK,
        probs_NK=torch.from_numpy(probs),
        rejection_N=trace_N == 1,
        steps_N=steps_N,
    )


def gradients_of(loss: torch.Tensor, *leaves: torch.Tensor) -> list[torch.Tensor]:
    for leaf in leaves:
        leaf.grad = None
    loss.backward()
    return [leaf.grad.clone() for leaf in leaves]


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("objective", list(Objective))
def test_chunks_of_any_size_have_value_and_gradients_of_all_logits_at_once(objective, weighting, monkeypatch) -> None:
    monkeypatch.setattr(chunked_loss, "_HEAD_BYTES", 3 * HIDDEN * 8)  # three words of the head's gradient at a time
    rng, spec = np.random.default_rng(5), OBJECTIVES[objective]
    for _ in range(25):
        mask_BQS = random_mask(rng)
        labels = random_labels(rng, mask_BQS)
        hidden_NH = torch.from_numpy(rng.normal(size=(len(labels.steps_N), HIDDEN))).requires_grad_()
        weight_VH = torch.from_numpy(rng.normal(size=(WORDS, HIDDEN)) * 2).requires_grad_()
        at = labels.beside(hidden_NH @ weight_VH.T)
        expected = spec.chain_loss(chains_of(spec, at, mask_BQS, rounds=ROUNDS, weighting=weighting))
        expected_gradients = gradients_of(0.37 * expected, hidden_NH, weight_VH)
        for most in (1, 2, STEPS, 5, 1000):
            chunks, scored_RS = row_chunks(mask_BQS.flatten(0, 1), most), mask_BQS.flatten(0, 1)

            def loss_of(logits_NV, chunk, labels=labels, scored_RS=scored_RS):
                at, rows_BRS = labels.beside(logits_NV, chunk.positions), scored_RS[None, chunk.rows]
                return spec.chain_loss(chains_of(spec, at, rows_BRS, rounds=ROUNDS, weighting=weighting))

            loss = summed_loss(hidden_NH, weight_VH, loss_of, chunks)
            assert loss.dtype is torch.float64
            torch.testing.assert_close(loss, expected, rtol=0.0, atol=1e-10)
            for got, wanted in zip(gradients_of(0.37 * loss, hidden_NH, weight_VH), expected_gradients, strict=True):
                torch.testing.assert_close(got, wanted, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("most", [1, 3, 4, 7, 100])
def test_chunks_cover_all_rows_and_positions_once_in_order_and_none_could_take_its_neighbours_first_row(most) -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        scored_RS = random_mask(rng).flatten(0, 1)
        counts, chunks = scored_RS.sum(1).tolist(), row_chunks(scored_RS, most)
        assert [r for c in chunks for r in range(c.rows.start, c.rows.stop)] == list(range(len(counts)))
        assert [n for c in chunks for n in range(c.positions.start, c.positions.stop)] == list(range(sum(counts)))
        held = [sum(counts[c.rows]) for c in chunks]
        assert held == [c.positions.stop - c.positions.start for c in chunks]
        assert all(n <= most or np.count_nonzero(counts[c.rows]) == 1 for n, c in zip(held, chunks, strict=True))
        for n, after in zip(held, chunks[1:], strict=False):
            assert n + counts[after.rows.start] > most


def test_a_chunk_holds_as_many_positions_as_the_bytes_allow_and_at_least_one() -> None:
    assert positions_per_chunk(1000, 16_000 * 7) == 7
    assert positions_per_chunk(1000, 16_000 * 7 - 1) == 6
    assert positions_per_chunk(1000, 1) == 1
    assert positions_per_chunk(32_000, CHUNK_BYTES) > 2000


@pytest.mark.parametrize("positions", [7, 11, 12, 13, 500])
def test_positions_are_scored_at_once_where_their_logits_take_no_more_than_a_chunk_beside_the_heads_gradient(
    positions,
) -> None:
    words, hidden, chunk_bytes = 1000, 20, 16_000 * 7
    all_at_once = 16 * words * positions <= chunk_bytes + 4 * words * hidden
    assert positions_at_once(positions, (words, hidden), chunk_bytes) == (positions if all_at_once else 7)


@pytest.fixture
def sampled(make_trace) -> list[DraftTrace]:
    changes = {"feature_dim": 48, "rounds": 6, "context_len": 3, "sampling": Sampling(temperature=0.7)}
    rules = (VerdictRule.TARGET_ONLY, VerdictRule.REJECTION)
    return [make_trace(seed, verdict_rule=rules[seed % 2], **changes) for seed in range(4)]


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("objective", list(Objective))
def test_a_batch_in_chunks_scores_as_in_one(make_draft, sampled, objective, weighting) -> None:
    spec, draft = OBJECTIVES[objective], make_draft(2, draft_ids=list(range(0, 50, 2)))
    batch, leaves = collate(sampled, CPU, soft=spec.needs_teacher), list(draft.parameters())
    whole = score_batch(draft, batch, steps=STEPS, weighting=weighting, spec=spec, chunk_bytes=2**40)
    wanted = gradients_of(whole.loss, *leaves)
    scores = score_batch(draft, batch, steps=STEPS, weighting=weighting, spec=spec, chunk_bytes=1)
    torch.testing.assert_close(scores.loss, whole.loss)
    torch.testing.assert_close(scores.acceptance_S, whole.acceptance_S)
    assert scores.out_of_vocabulary_labels == whole.out_of_vocabulary_labels > 0
    for got, expected in zip(gradients_of(scores.loss, *leaves), wanted, strict=True):
        torch.testing.assert_close(got, expected)


def test_the_best_tokens_of_many_positions_are_found_a_chunk_at_a_time(make_draft, monkeypatch) -> None:
    draft, hidden_NH = make_draft(3), torch.randn(23, 16, generator=torch.Generator().manual_seed(1))
    expected, seen = draft.best_tokens(hidden_NH), []
    draft.lm_head.register_forward_hook(lambda _, __, out: seen.append(len(out)))
    monkeypatch.setattr(draft_module, "positions_per_chunk", lambda _: 10)
    assert torch.equal(draft.best_tokens(hidden_NH), expected)
    assert draft.best_tokens(hidden_NH[:0]).tolist() == []
    assert seen == [10, 10, 3, 0]


@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("objective", list(Objective))
def test_the_logits_of_a_chunk_take_the_bytes_they_may_take(objective, weighting) -> None:
    words, positions, most = 20_000, 60, 12
    spec, mask_BQS = OBJECTIVES[objective], torch.ones(1, positions // STEPS, STEPS).bool()
    labels = Labels(
        committed_N=torch.arange(positions),
        ids_NK=torch.arange(positions * ENTRIES).view(positions, ENTRIES),
        probs_NK=torch.full((positions, ENTRIES), 1 / ENTRIES),
        rejection_N=torch.arange(positions) % 2 == 0,
        steps_N=torch.arange(positions) % STEPS,
    )
    hidden_NH, weight_VH = torch.randn(positions, 2, requires_grad=True), torch.randn(words, 2, requires_grad=True)

    def loss_of(logits_NV, chunk):
        at, rows_BRS = labels.beside(logits_NV, chunk.positions), mask_BQS[:, chunk.rows]
        return spec.chain_loss(chains_of(spec, at, rows_BRS, rounds=20, weighting=weighting))

    for held in (most, positions):
        chunk_bytes = 16 * words * held
        chunks = row_chunks(mask_BQS[0], positions_per_chunk(words, chunk_bytes))
        assert len(chunks) == positions // held
        peak = peak_bytes(lambda c=chunks: summed_loss(hidden_NH, weight_VH, loss_of, c).backward(), CPU)
        assert 0.7 * chunk_bytes < peak < chunk_bytes + 4 * weight_VH.nbytes
