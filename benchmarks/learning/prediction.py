"""What replay predicted for a version before it was served, beside what the server then counted."""

import importlib.util
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...buffer.trace import DraftTrace, Int32s
from ...policies.acceptance import Tally, replayed_tally, served_tally, walk

COLUMNS = (
    "version", "draft", "predicted", "served, other prompts", "error", "by chance of prompts", "served, same prompts",
    "error", "same, within the text", "error", "equal texts", "rounds as predicted",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prediction:
    """One version: its accept length by replay of what another version served, and as served after the swap."""

    version: int
    draft: str
    predicted: Tally
    other: Tally  # served, other prompts from the same distribution, as the server counted
    same: Tally  # served, the prompts that were replayed
    within: Tally  # of those, without drafts accepted past the end of a request: what replay can see
    noise: float  # half a 95 % interval of the error on other prompts, if prompts were all that differs
    equal_texts: tuple[int, int]  # of the same prompts: committed as before; all
    equal_rounds: tuple[int, int]  # of the same prompts: rounds served as predicted; all that have a token after them

    def errors(self) -> tuple[float, float, float]:
        """Predicted less served accept length: other prompts, same prompts, same prompts within the text."""
        predicted = self.predicted.accept_length
        return (
            predicted - self.other.accept_length,
            predicted - self.same.accept_length,
            predicted - self.within.accept_length,
        )


def compare(
    version: int,
    draft: str,
    replayed: Sequence[tuple[DraftTrace, Int32s]],
    same: Sequence[DraftTrace],
    other: Sequence[DraftTrace],
) -> Prediction:
    """`replayed`: traces served before the swap, with the runs of the version's weights on them; `same`: of the same
    prompts in the same order, `other`: of other prompts, both served by the version.
    """
    predicted = [replayed_tally(trace, runs) for trace, runs in replayed]
    pairs = list(zip(replayed, same, strict=True))
    texts = sum(np.array_equal(before.tokens, after.tokens) for (before, _), after in pairs)
    compared_rounds = [(_predicted_rounds(before, runs), _seen(after)) for (before, runs), after in pairs]
    return Prediction(
        version,
        draft,
        predicted=sum(predicted, Tally()),
        other=sum(map(served_tally, other), Tally()),
        same=sum(map(served_tally, same), Tally()),
        within=sum((Tally(sum(seen.values()), len(seen)) for _, seen in compared_rounds), Tally()),
        noise=1.96 * math.hypot(standard_error(predicted), standard_error([served_tally(trace) for trace in other])),
        equal_texts=(texts, len(pairs)),
        equal_rounds=(
            sum(len(a.items() & b.items()) for a, b in compared_rounds),
            sum(len(seen) for _, seen in compared_rounds),
        ),
    )


def standard_error(tallies: Sequence[Tally]) -> float:
    """Of the accept length pooled over independent requests: that of a ratio of sums; NaN below two requests."""
    whole, n = sum(tallies, Tally()), len(tallies)
    if n < 2 or not whole.rounds:
        return math.nan
    mean = whole.accepted / whole.rounds
    squares = sum((tally.accepted - mean * tally.rounds) ** 2 for tally in tallies)
    return math.sqrt(squares * n / (n - 1)) / whole.rounds


def markdown(predictions: Sequence[Prediction]) -> str:
    """A line per version, accept lengths with the bonus token, and the median of the absolute errors."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *map(_cells, predictions)]
    medians = [statistics.median(map(abs, errors)) for errors in zip(*(p.errors() for p in predictions), strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + (
        f"\nMedian absolute error over {len(predictions)} versions: {medians[0]:.3f} on other prompts, "
        f"{medians[1]:.3f} on the same prompts, {medians[2]:.3f} on the same prompts within the text.\n"
    )


def plot(predictions: Sequence[Prediction], path: Path) -> bool:
    """Predicted against served, one point per version and kind, into a PNG; False without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib as mpl  # noqa: PLC0415 - the script runs without it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - as above, and only once the backend is chosen

    figure, panel = plt.subplots(figsize=(6, 6))
    predicted = [prediction.predicted.accept_length for prediction in predictions]
    panel.scatter(predicted, [p.other.accept_length for p in predictions], label="other prompts")
    panel.scatter(predicted, [p.same.accept_length for p in predictions], marker="x", label="same prompts")
    panel.axline((1.0, 1.0), slope=1.0, color="grey", linestyle=":")
    panel.set_xlabel("predicted accept length, before the swap")
    panel.set_ylabel("served accept length, after the swap")
    panel.legend()
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return True


def _predicted_rounds(trace: DraftTrace, runs: Int32s) -> dict[int, int]:
    """Root -> accepted drafts of the rounds that the replayed weights would have served."""
    roots = trace.rounds.starts[runs[trace.rounds.starts] >= 0]
    starts, accepted = walk(runs, int(roots[0]), len(trace.tokens) - 2) if len(roots) else (roots, roots)
    return dict(zip(starts.tolist(), accepted.tolist(), strict=True))


def _seen(trace: DraftTrace) -> dict[int, int]:
    """Root -> accepted drafts of the rounds that were served, cut at the end of the text."""
    found = zip(trace.rounds.starts.tolist(), trace.visible_accepted().tolist(), strict=True)
    return {start: accepted for start, accepted in found if start <= len(trace.tokens) - 2}


def _cells(prediction: Prediction) -> list[str]:
    served = (prediction.other, prediction.same, prediction.within)
    both = zip(served, prediction.errors(), strict=True)
    lengths = [text for tally, error in both for text in (f"{tally.accept_length:.3f}", f"{error:+.3f}")]
    fractions = [f"{part} of {whole}" for part, whole in (prediction.equal_texts, prediction.equal_rounds)]
    return [
        str(prediction.version), prediction.draft, f"{prediction.predicted.accept_length:.3f}", *lengths[:2],
        f"± {prediction.noise:.3f}", *lengths[2:], *fractions,
    ]  # fmt: skip
