"""What the gate's test says of the line on the rollouts of a run, step by step, against the first draft.

As a learner asks it: the newest draft that had not learnt a step is judged on it, in two blocks of whole prompts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ...learner.judging.paired_replay import paired
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...policies.paired import Paired, by_prompt
from ...policies.prequential import PrequentialRules, PrequentialTest
from ...rig.deployment import DRAFT_STEPS
from .recorded import RecordedRun


def line_pairs(run: RecordedRun, target: Path) -> dict[int, list[Paired]]:
    """Step -> its requests, replayed with the newest draft and with the first; no steps without a newer draft."""
    embedding = load_target_embedding(target)
    first = load_draft(run.draft(0), embedding)
    return {
        step: paired(traces, load_draft(run.draft(run.newest(step)), embedding), first, DRAFT_STEPS)
        for step, traces in run.traces().items()
        if run.newest(step)
    }


def odds_by_step(pairs: Mapping[int, Sequence[Paired]]) -> dict[int, float]:
    """Step -> odds that the line gains, on all requests up to that step."""
    test = PrequentialTest(PrequentialRules())
    found = {}
    for step, some in pairs.items():
        prompts = by_prompt(some)
        for half in (prompts[: len(prompts) // 2], prompts[len(prompts) // 2 :]):
            test.observe([pair for answers in half for pair in answers])
        found[step] = test.verdict().odds
    return found


def shared_variance(pairs: Mapping[int, Sequence[Paired]]) -> float | None:
    """Share of the variance of gains that is between prompts (one-way analysis of variance); None with one answer each.

    Below 0 where the answers to a prompt differ more than those to different prompts.
    """
    gains = [np.array([pair.gain for pair in some]) for every in pairs.values() for some in by_prompt(every)]
    several = [each for each in gains if len(each) > 1]
    if len(several) < 2:
        return None
    within = float(np.mean([each.var(ddof=1) for each in several]))
    size = float(np.mean([len(each) for each in several]))
    between = float(np.var([each.mean() for each in several], ddof=1)) - within / size
    return between / (between + within)
