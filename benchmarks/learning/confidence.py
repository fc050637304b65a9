"""How well a draft's own probability tells whether its tokens will be accepted, and what lengths chosen by it bring.

    python -m paceline.benchmarks.learning.record --target smollm2 --settings t0-k3     # eight streams of a chat model
    python -m paceline.benchmarks.learning.confidence --target smollm2

The streams are interleaved. A draft learns from every 28 requests, and drafts the next 28, by replay, in rounds of up
to MOST_DRAFTS drafts. Of every draft whose forerunners are accepted, the probability that the draft gave it is kept
beside whether it is accepted. Then chains that end where their chance falls below a threshold are compared with chains
of one length, by tokens per cost, in units of a verify round without drafts.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from ...buffer.stream.trace import DraftTrace
from ...learner.judging.replay import replay_traces
from ...learner.model.draft import Draft
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...learner.model.logits import logits_of
from ...learner.training.batch import collate, verdict_rows
from ...learner.training.plan import TrainingPlan
from ...learner.training.trainer import DraftTrainer
from .choice import CADENCE
from .figures import Mean
from .lab import Lab
from .orders import in_order, kept_or_made, report
from .programme import Setting
from .runs import REPLAY_TRACES

#: Drafts of a round at most: what SGLang's adaptive speculation may choose.
MOST_DRAFTS = 7
#: Bins of equal width of the probability.
BINS = 20
#: What a draft step and a verified token cost, in rounds without drafts.
COSTS = (0.02, 0.05, 0.1, 0.2)
THRESHOLDS = np.linspace(0.0, 0.95, 39)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Roots(msgspec.Struct, frozen=True):
    """Of every place of one trace where a round may begin: what a draft would make there."""

    probabilities: list[list[float]]  # of the drafts that are accepted, and of the first that is not
    accepted: list[int]


#: The requests that one version of the draft drafts.
Version = list[Roots]
#: How many drafts a round that begins there has.
Length = Callable[[Roots, int], int]


def main() -> None:
    """Replay what is not kept, and write the tables."""
    report("confidence", __doc__, kept, tables)


def kept(lab: Lab, setting: Setting, seed: int) -> list[Version]:
    """The versions of one seed; replayed where they are not kept."""
    file = lab.folder / "confidence" / f"{setting.name}-{seed}.json"
    found: list[Version] = kept_or_made(file, list[list[Roots]], lambda: list(versions(lab, setting, seed)))
    return found


def versions(lab: Lab, setting: Setting, seed: int) -> Iterator[Version]:
    """Replay all streams in the order of `seed`, and learn from them."""
    traces = in_order(lab, setting, seed)
    draft = load_draft(lab.random_head(seed), load_target_embedding(lab.target.folder))
    trainer = DraftTrainer(draft, TrainingPlan(steps=setting.steps, seed=seed))
    seen: list[DraftTrace] = []
    for start in range(0, len(traces), CADENCE):
        block = traces[start : start + CADENCE]
        yield [drafted(trainer.draft, trace) for trace in block]
        trainer.fit(block, seen[-REPLAY_TRACES:])
        seen += block


@torch.inference_mode()
def drafted(draft: Draft, trace: DraftTrace) -> Roots:
    """What `draft` makes of a trace."""
    batch = collate([trace], draft.device)
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, batch.rows_BQ, batch.opens_text_B)
    probabilities = [
        logits_of(draft.advance(chains)[0], draft.lm_head.weight).softmax(-1).max(-1).values for _ in range(MOST_DRAFTS)
    ]
    (runs_T,) = replay_traces(draft, [trace], MOST_DRAFTS, only_verdicts=True)
    accepted = runs_T[verdict_rows(trace) + 1].tolist()
    rows = torch.stack(probabilities, 1).tolist()
    return Roots([row[: run + 1] for row, run in zip(rows, accepted, strict=True)], accepted)


def rounds_of(roots: Roots, length: Length) -> Iterator[tuple[int, int, int]]:
    """The rounds of a trace, one after another: where it begins, its drafts, and how many of them are accepted."""
    place = 0
    while place < len(roots.accepted):
        drafts = length(roots, place)
        accepted = min(roots.accepted[place], drafts)
        yield place, drafts, accepted
        place += accepted + 1


def longest(_roots: Roots, _place: int) -> int:
    """As many drafts as a round may have."""
    return MOST_DRAFTS


def pairs(version: Version) -> tuple[Floats, Bools]:
    """Of every draft whose forerunners are accepted: its probability, and whether it is accepted too."""
    found = [
        (chance, number < accepted)
        for roots in version
        for place, _, accepted in rounds_of(roots, longest)
        for number, chance in enumerate(roots.probabilities[place])
    ]
    chances, hits = zip(*found, strict=True)
    return np.array(chances), np.array(hits)


def table_of(chances: Floats, hits: Bools) -> Floats:
    """The accepted share of every bin; an empty bin says what its middle does, and few drafts move it little."""
    place = bins_of(chances)
    counts = np.bincount(place, minlength=BINS)
    middles = (np.arange(BINS) + 0.5) / BINS
    return (np.bincount(place, weights=hits, minlength=BINS) + middles) / (counts + 1.0)


def bins_of(chances: Floats) -> NDArray[np.int64]:
    """The bin of every probability."""
    return np.minimum((chances * BINS).astype(np.int64), BINS - 1)


def error(chances: Floats, hits: Bools) -> float:
    """Expected calibration error: the mean distance of a bin's chance from its accepted share, by drafts in it."""
    place = bins_of(chances)
    apart = np.bincount(place, weights=chances - hits, minlength=BINS)
    return float(np.abs(apart).sum() / len(hits))


def tables(seeds: Sequence[Sequence[Version]]) -> str:
    """Both tables."""
    return f"{calibration(seeds)}\n\n{lengths(seeds)}\n"


def calibration(seeds: Sequence[Sequence[Version]]) -> str:
    """Calibration errors by version: as the draft says, by the table of the version before, and by its own."""
    lines: list[tuple[str, ...]] = [
        ("version", "drafts", "accepted", "as the draft says", "table of the version before", "own first half")
    ]
    lines.append(("---",) * len(lines[0]))
    for number in range(1, len(seeds[0]) - 1):
        rows = []
        for versions_of in seeds:
            chances, hits = pairs(versions_of[number])
            half = len(hits) // 2
            before = table_of(*pairs(versions_of[number - 1]))[bins_of(chances)]
            own = table_of(chances[:half], hits[:half])[bins_of(chances[half:])]
            rows.append((len(hits), hits.mean(), error(chances, hits), error(before, hits), error(own, hits[half:])))
        drafts, *shares = zip(*rows, strict=True)
        lines.append((str(number), str(sum(drafts)), *(Mean.of(list(share)).text() for share in shares)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def lengths(seeds: Sequence[Sequence[Version]]) -> str:
    """Tokens per cost by the best length for all, and by chains that end at a threshold of their chance."""
    lines: list[tuple[str, ...]] = [
        ("cost of a draft", "best length", "by confidence over it", "by an oracle over it"),
        ("---",) * 4,
    ]
    for cost in COSTS:
        rows = [speeds(versions_of, cost) for versions_of in seeds]
        best, chosen, oracle = zip(*rows, strict=True)
        gains = (Mean.of(list(of)).text() for of in (chosen, oracle))
        lines.append((str(cost), ", ".join(map(str, best)), *gains))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def speeds(versions_of: Sequence[Version], cost: float) -> tuple[int, float, float]:
    """The best length over the later half, and what thresholds and an oracle make of it: ratios of tokens per cost.

    The table that makes chances of probabilities is always that of the version before. Length and threshold are the
    best in hindsight, one for all.
    """
    half = len(versions_of) // 2
    later = [roots for version in versions_of[half:] for roots in version]
    ahead = [
        held_up_to(roots, table_of(*pairs(before)))
        for before, version in zip(versions_of[half - 1 :], versions_of[half:], strict=False)
        for roots in version
    ]
    fixed = [speed(later, [lambda *_, n=length: n] * len(later), cost) for length in range(MOST_DRAFTS + 1)]
    chosen = [speed(later, [at_least(chances, least) for chances in ahead], cost) for least in THRESHOLDS]
    oracle = speed(later, [lambda roots, place: roots.accepted[place]] * len(later), cost)
    best = max(fixed)
    return fixed.index(best), max(*chosen, fixed[0]) / best, oracle / best


def held_up_to(roots: Roots, table: Floats) -> Floats:
    """The chance that all drafts so far are accepted, by place and draft, [places, MOST_DRAFTS - 1].

    What follows a draft that is not accepted is unknown: it goes on with the chance of that draft.
    """
    rows = [[*found, *found[-1:] * MOST_DRAFTS][: MOST_DRAFTS - 1] for found in roots.probabilities]
    chances: Floats = np.cumprod(table[bins_of(np.array(rows))], axis=1, dtype=np.float64)
    return chances


def at_least(chances: Floats, least: float) -> Length:
    """One draft, and one more as long as all so far hold with this chance."""
    lengths_of_all = (1 + (chances >= least).sum(1)).tolist()
    return lambda _roots, place: int(lengths_of_all[place])


def speed(traces: Sequence[Roots], lengths_of: Sequence[Length], cost: float) -> float:
    """Tokens per cost."""
    tokens = spent = 0.0
    for roots, length in zip(traces, lengths_of, strict=True):
        for _, drafts, accepted in rounds_of(roots, length):
            tokens += 1 + accepted
            spent += 1.0 + cost * drafts
    return tokens / spent


if __name__ == "__main__":
    main()
