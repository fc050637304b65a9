"""A learner whose device has too little memory: smaller parts, and no trace accused of it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from paceline.buffer.errors import DeviceOutOfMemory
from paceline.buffer.stream.trace import DraftTrace
from paceline.buffer.stream.trace_buffer import MAX_DELIVERIES
from paceline.learner import recovery
from paceline.learner.round import learning_round
from paceline.learner.round.learning_report import LearningKind
from paceline.learner.training import first_position
from paceline.learner.training.device_memory import padded_tokens
from paceline.learner.training.trainer import DraftTrainer

SAID = "CUDA out of memory. Tried to allocate 2.00 GiB."


def no_room(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError(f"{SAID}\nGPU 0 has a total capacity of 23.5 GiB")


def room_for(tokens: int, tried: list[int]) -> Callable[..., Any]:
    """Scoring on a device that holds so many tokens, padding included."""
    score = DraftTrainer._score

    def bounded(self: DraftTrainer, part: Sequence[DraftTrace]) -> Any:
        tried.append(padded_tokens(part))
        return score(self, part) if tried[-1] <= tokens else no_room()

    return bounded


@pytest.mark.guarantee("device-out-of-memory")
def test_a_batch_that_does_not_fit_is_learned_in_parts_within_one_learning_round(
    house, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces, tried = house.send(), list[int]()
    most = max(len(trace.tokens) for trace in traces)
    monkeypatch.setattr(DraftTrainer, "_score", room_for(most, tried))
    report = house.learner().learn_once()
    assert report.kind is LearningKind.LEARNED
    assert tried[0] > most >= report.fit.part_tokens
    assert report.fit.steps > 1
    assert sum(size > most for size in tried) <= 2  # once it is known, it is not tried again
    assert (house.buffer.counts().pending, house.buffer.counts().dead_lettered) == (0, 0)


@pytest.mark.guarantee("device-out-of-memory")
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (DraftTrainer, "_score"),
        (DraftTrainer, "_apply"),
        (first_position, "_best_and_teacher"),
        (learning_round, "judge_candidate"),
        (recovery, "load_target_embedding"),
    ],
)
def test_without_memory_for_one_trace_rounds_end_with_the_settings_and_cost_no_trace_however_many_they_are(
    house, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    traces, learner = house.send(), house.learner(batch_tokens=700)
    with monkeypatch.context() as patched:
        patched.setattr(place, name, no_room)
        for _ in range(MAX_DELIVERIES + 2):
            with pytest.raises(DeviceOutOfMemory) as refused:
                learner.learn_once()
    said = str(refused.value)
    assert said.startswith("device cpu: out of memory (")
    assert f"{SAID}); the traces stay pending. Lower PACELINE_BATCH_TOKENS, now 700; where one trace" in said
    assert "PACELINE_DRAFT_STEPS" in said
    assert "PACELINE_TRACE_TOKENS" in said
    assert ("one trace of " in said) == (name in {"_score", "_best_and_teacher"})
    assert house.buffer.counts().dead_lettered == 0
    assert house.buffer.counts().pending == len(traces)
    assert sum(learner.learn_once().outcomes.values()) == len(traces)
    *failed, whole = house.fitted
    assert all(fit == failed[0] for fit in failed)  # a claim is never made smaller, so its first block never is
    assert all(fit == whole[: len(fit)] and len(fit) >= len(whole) // 2 for fit in failed)
    assert (house.buffer.counts().pending, house.buffer.counts().dead_lettered) == (0, 0)
