"""A learner learns from, judges by and replays traces whose features are one byte per value."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from paceline.buffer.stream.feature_rows import FeatureDtype, quantised
from paceline.buffer.stream.trace import DraftTrace
from paceline.learner.judging.replay import replay_traces
from paceline.learner.round.learning_report import LearningKind
from paceline.learner.training.batch import collate

KINDS = [kind for kind in FeatureDtype if kind.is_quantised]
CPU = torch.device("cpu")


def stored(trace: DraftTrace, kind: FeatureDtype) -> DraftTrace:
    """As a server with PACELINE_FEATURE_FORMAT sends it."""
    codes, scales = quantised(trace.features, trace.feature_dtype, kind)
    return replace(trace, features=codes, feature_scales=scales, feature_dtype=kind, replay_exact=False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_holds_what_the_codes_stand_for(make_trace: Any, kind: FeatureDtype) -> None:
    traces = [stored(make_trace(0), kind), make_trace(1, context_len=3), stored(make_trace(2), kind)]
    batch = collate(traces, CPU)
    for rows, trace in zip(batch.features_BFD, traces, strict=True):
        np.testing.assert_array_equal(rows[: len(trace.features)], trace.feature_numbers())
        assert not rows[len(trace.features) :].any()


@pytest.mark.parametrize("kind", KINDS)
def test_replay_of_them_is_near_and_not_exact(make_trace: Any, make_draft: Any, kind: FeatureDtype) -> None:
    draft = make_draft()
    traces = [make_trace(seed, context_len=40, rounds=0, feature_dim=48) for seed in range(30)]
    exact = np.concatenate(replay_traces(draft, traces, 3))
    near = np.concatenate(replay_traces(draft, [stored(trace, kind) for trace in traces], 3))
    assert 0.9 < np.mean(exact == near) <= 1.0
    # The same draft on features of another trace: what a wrong decoding would give.
    other = [replace(trace, features=traces[i - 1].features[: len(trace.features)]) for i, trace in enumerate(traces)]
    assert np.mean(exact == np.concatenate(replay_traces(draft, other, 3))) < np.mean(exact == near)


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_learns_and_judges_and_compares_no_replay_with_what_was_served(
    house: Any, kind: FeatureDtype
) -> None:
    for _ in range(2):
        traces = [stored(house.speculator.serve(house.sent + i), kind) for i in range(24)]
        house.sent += len(traces)
        house.buffer.append(traces)
        report = house.learner().learn_once()
        assert report.kind is LearningKind.LEARNED
        assert set(report.outcomes) == {"learned", "held_out"}
        assert report.fit.steps > 0
        assert report.fit.unusable_traces == 0
        assert report.calibration.compared == 0
    assert report.promotion is not None
    house.send(24)
    assert house.learner().learn_once().calibration.compared > 0  # of those whose features are exact
