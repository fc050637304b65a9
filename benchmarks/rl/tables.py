"""The tables of the rollout bench, as Markdown."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ...rig.ratio import Ratio, ratio
from .arms import ARMS, StepArms
from .recorded import RecordedRun, RunPlan
from .seconds import NO_SPECULATION, Figures, Seconds

#: Of a run, the part in which the target has moved furthest.
_LAST_PART = 3

Runs = Mapping[RunPlan, tuple[RecordedRun, Sequence[StepArms]]]


def rate_table(runs: Runs) -> str:
    """Accepted drafts per round by rate, pooled over the last third of the steps, and ratios of pairs over seeds."""
    by_rate: dict[float, list[tuple[RecordedRun, Sequence[StepArms]]]] = defaultdict(list)
    for plan, found in runs.items():
        by_rate[plan.learning_rate].append(found)
    heading = ["rate", "runs", "KL", "entropy", *ARMS, "following / zero-update", "newest / zero-update", "learner"]
    return table(heading, [_rate_row(rate, found) for rate, found in by_rate.items()])


def _rate_row(rate: float, runs: Sequence[tuple[RecordedRun, Sequence[StepArms]]]) -> list[str]:
    lasts = [steps[-max(len(steps) // _LAST_PART, 1) :] for _, steps in runs]
    by_arm = {arm: [pooled(last, arm) for last in lasts] for arm in ARMS}
    kl, entropy = (_mean([getattr(last[-1], name) for last in lasts]) for name in ("kl", "entropy"))
    ratios = [ratio(by_arm[arm], by_arm["zero-update"]) for arm in ("following", "newest")]
    learner = "; ".join(_learner(run) for run, _ in runs)
    arms = (f"{_mean(by_arm[arm]):.3f}" for arm in ARMS)
    return [f"{rate:g}", str(len(runs)), f"{kl:.4f}", f"{entropy:.2f}", *arms, *map(_shown, ratios), learner]


def _shown(found: Ratio) -> str:
    low, high = found.interval
    return f"{found.mean:.3f} ({low:.3f} .. {high:.3f})" if found.pairs > 1 else f"{found.mean:.3f} (one run)"


def pooled(steps: Sequence[StepArms], arm: str) -> float:
    """Accepted drafts per verify round over several steps."""
    return sum(step.accepted[arm] for step in steps) / sum(step.rounds[arm] for step in steps)


def _learner(run: RecordedRun) -> str:
    """Rounds that trained and that rested, and versions that were ever live."""
    learner = run.notes["learner"]
    live = len({trace.draft_version for traces in run.traces().values() for trace in traces})
    trained, rested = (learner.get(name, "unknown") for name in ("rounds", "rests"))
    return f"{trained} trained, {rested} rested, drafts that served: {live}"


def steps_table(steps: Sequence[StepArms]) -> str:
    """One run, step by step, with the odds that the gate's test gives the line against the first draft."""
    rows = [
        [
            str(step.step),
            f"{step.kl:.4f}",
            f"{step.entropy:.2f}",
            *(f"{step.per_round(arm):.3f}" for arm in ARMS),
            "-" if step.odds is None else f"{step.odds:.3g}",
        ]
        for step in steps
    ]
    shared = "unknown" if steps[-1].shared is None else f"{steps[-1].shared:.0%}"
    shown = table(["step", "KL", "entropy", *ARMS, "odds"], rows)
    return f"{shown}\n\nAnswers to one prompt share of the variance of their gains: {shared}"


def seconds_table(seconds: Seconds) -> str:
    """By saved step and arm: medians of rollout and tail seconds, accept length, and tokens per second, over those of
    no speculation in the same turns.
    """
    rows = [
        [step, arm, *_medians(figures), _length(figures), _over(figures, arms[NO_SPECULATION])]
        for step, arms in seconds.items()
        for arm, figures in arms.items()
    ]
    return table(["step", "arm", "rollout s", "tail s", "accept length", "tokens per second over none"], rows)


def parts_table(seconds: Seconds) -> str:
    """By arm, over all turns of all saved steps: tokens per second, and the seconds of the wide part, in which most
    answers are made, and of the tail, over those of no speculation in the same turns.
    """
    turns = {arm: [turn for arms in seconds.values() for turn in arms[arm]] for arm in next(iter(seconds.values()))}
    base = turns.pop(NO_SPECULATION)
    measures = (
        lambda turn: turn["tokens"] / turn["seconds"],
        lambda turn: turn["seconds"] - turn["tail_seconds"],
        lambda turn: turn["tail_seconds"],
    )
    rows = [
        [arm, *(_shown(ratio([*map(measure, figures)], [*map(measure, base)])) for measure in measures)]
        for arm, figures in turns.items()
    ]
    return table(["arm, over no speculation", "tokens per second", "seconds of the wide part", "of the tail"], rows)


def _medians(figures: Figures) -> list[str]:
    rollout, tail = (statistics.median(each[name] for each in figures) for name in ("seconds", "tail_seconds"))
    return [f"{rollout:.1f}", f"{tail:.2f}"]


def _length(figures: Figures) -> str:
    known = [each["accept_length"] for each in figures if "accept_length" in each]
    return f"{_mean(known):.3f}" if known else "1 (no drafts)"


def _over(figures: Figures, base: Figures) -> str:
    if figures is base:
        return "1"
    rates = [[each["tokens"] / each["seconds"] for each in side] for side in (figures, base)]
    return _shown(ratio(rates[0], rates[1]))


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _mean(figures: Sequence[float]) -> float:
    return sum(figures) / len(figures)
