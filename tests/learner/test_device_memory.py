"""Batches in parts: the gradient is that of the whole batch, and a device without memory for it gets smaller parts."""

import itertools
import logging
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from paceline.buffer.stream.trace import DraftTrace
from paceline.learner.training.batch import collate, verdict_rows_by_step
from paceline.learner.training.device_memory import PartBound, is_out_of_memory, padded_tokens, parts_within
from paceline.learner.training.plan import Recipe
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan

CPU = torch.device("cpu")
ROUNDS = (2, 6, 3, 4, 2, 5)


@pytest.fixture(autouse=True)
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of parts are compared with sums of the whole, which bfloat16 would blur."""
    monkeypatch.setattr("paceline.learner.training.trainer.has_bfloat16", lambda _: False)


@pytest.fixture
def traces(make_trace) -> list[DraftTrace]:
    return [make_trace(seed, rounds=rounds, feature_dim=48, context_len=3) for seed, rounds in enumerate(ROUNDS)]


def lengths(parts: Sequence[Sequence[DraftTrace]]) -> list[list[int]]:
    return [[len(trace.tokens) for trace in part] for part in parts]


def no_room(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nplanted")


def test_what_torch_raises_without_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 46, dtype=torch.uint8)
    assert is_out_of_memory(refused.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator: a quotation"))


@pytest.mark.parametrize("most", [1, 2, 100])
def test_parts_hold_the_traces_in_order_and_each_is_as_full_as_both_bounds_allow(make_trace, most) -> None:
    rng = np.random.default_rng(3)
    several = [make_trace(seed, rounds=1, context_len=int(rng.integers(1, 40))) for seed in range(30)]
    for tokens in (1, 30, 60, 200, 10_000):
        parts = parts_within(several, tokens, most)
        assert [trace for part in parts for trace in part] == several
        assert all(len(part) == 1 or len(part) * max(lengths([part])[0]) <= tokens for part in parts)
        assert all(len(part) <= most for part in parts)
        for part, after in itertools.pairwise(parts):
            joined = [*part, after[0]]
            assert len(joined) > most or len(joined) * max(lengths([joined])[0]) > tokens
    assert parts_within([], 10, most) == []


def test_verdict_rows_by_step_are_the_rows_that_a_batch_scores(traces) -> None:
    for part in ([traces[0]], traces):
        assert verdict_rows_by_step(part, 4).tolist() == collate(part, CPU).scored_mask(4).sum((0, 1)).tolist()
        assert int(collate(part, CPU).row_mask_BQ.sum()) == verdict_rows_by_step(part, 4)[0]


def fits_up_to(limit: int, tried: list[int]) -> Callable[[Sequence[DraftTrace]], list[str]]:
    def work(part: Sequence[DraftTrace]) -> list[str]:
        tried.append(padded_tokens(part))
        if padded_tokens(part) > limit:
            no_room()
        return [trace.trace_id for trace in part]

    return work


def test_what_does_not_fit_is_tried_in_halves_until_it_does_and_from_the_start(traces, caplog) -> None:
    whole, longest = padded_tokens(traces), max(len(trace.tokens) for trace in traces)
    bound, restarts, tried = PartBound(whole), [], []
    with caplog.at_level(logging.WARNING):
        found = bound.map(
            fits_up_to(2 * longest, tried), traces, restart=lambda: restarts.append(len(tried)), most_traces=9
        )
    assert [name for part in found for name in part] == [trace.trace_id for trace in traces]
    assert tried[0] == whole > 2 * longest
    assert len(restarts) == len(caplog.messages) + 1 == 1 + sum(size > 2 * longest for size in tried)
    assert f"6 traces, padded to {whole} tokens, do not fit" in caplog.messages[0]
    assert f"parts of at most {whole // 2} (CUDA out of memory. Tried to allocate 2.00 GiB.)" in caplog.messages[0]
    assert bound.tokens < whole
    before = len(restarts)
    bound.map(fits_up_to(2 * longest, tried), traces, restart=lambda: restarts.append(0), most_traces=9)
    assert len(restarts) == before + 1  # what was too large is not tried again


def test_a_trace_that_does_not_fit_alone_ends_it_and_another_fault_is_not_taken_for_one_of_memory(traces) -> None:
    tried: list[int] = []
    with pytest.raises(torch.OutOfMemoryError) as refused:
        PartBound(9999).map(fits_up_to(1, tried), traces, restart=lambda: None, most_traces=9)
    assert tried[-1] == len(traces[0].tokens)
    assert refused.value.__notes__ == [f"one trace of {len(traces[0].tokens)} tokens does not fit"]

    def broken(_: object) -> None:
        tried.append(-1)
        raise RuntimeError("shapes cannot be multiplied")

    tried.clear()
    with pytest.raises(RuntimeError, match="shapes"):
        PartBound(9999).map(broken, traces, restart=lambda: None, most_traces=9)
    assert tried == [-1]


def trainer_of(make_draft, batch_tokens: int = 8192) -> DraftTrainer:
    plan = TrainingPlan(passes=2, batch_tokens=batch_tokens)
    return DraftTrainer(make_draft(1), plan, recipe=Recipe(batch_traces=3, replay_share=0.0))


def weights_of(trainer: DraftTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.draft.state_dict().items()}


@pytest.mark.parametrize("batch_tokens", [1, 30, 8192])
def test_a_fit_in_parts_is_the_fit_of_whole_batches(make_draft, traces, batch_tokens) -> None:
    whole, parts = trainer_of(make_draft), trainer_of(make_draft, batch_tokens)
    expected, found = whole.fit(traces, []), parts.fit(traces, [])
    assert found.steps == expected.steps == 4
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)
    assert found.mean_acceptance == pytest.approx(expected.mean_acceptance, rel=1e-4)
    assert (found.part_tokens, found.out_of_vocabulary_labels) == (batch_tokens, expected.out_of_vocabulary_labels)
    for name, tensor in weights_of(whole).items():
        torch.testing.assert_close(weights_of(parts)[name], tensor, rtol=1e-2, atol=1e-4)


def test_a_batch_that_fails_half_way_through_its_backward_pass_leaves_nothing_in_the_gradient(
    make_draft, traces, monkeypatch
) -> None:
    """The first projection is the last to get its gradient: by then the head's has been added."""
    expected, trainer, sizes = trainer_of(make_draft), trainer_of(make_draft), []
    expected._find_gradient(traces)
    score, limit = DraftTrainer._score, 2 * max(len(trace.tokens) for trace in traces)

    def watched(self: DraftTrainer, part: Sequence[DraftTrace]):
        sizes.append(padded_tokens(part))
        return score(self, part)

    monkeypatch.setattr(DraftTrainer, "_score", watched)
    trainer.draft.fc.weight.register_hook(lambda _: no_room() if sizes[-1] > limit else None)
    trainer._find_gradient(traces)
    assert sizes[0] > limit >= sizes[-1]
    for one, other in zip(expected.draft.parameters(), trainer.draft.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-6)


def test_every_fit_begins_with_the_bound_of_the_plan(make_draft, traces, monkeypatch) -> None:
    trainer, score = trainer_of(make_draft), DraftTrainer._score
    with monkeypatch.context() as patched:
        patched.setattr(DraftTrainer, "_score", lambda self, part: no_room() if len(part) > 1 else score(self, part))
        assert trainer.fit(traces, []).part_tokens < 100
    assert trainer.fit(traces, []).part_tokens == 8192
