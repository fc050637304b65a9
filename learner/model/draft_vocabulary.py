"""Chooses the tokens that a draft may propose: the most frequent ones of some text.

A draft's head is most of its cost per step, and few of a large target's tokens make up nearly all of a text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...buffer.errors import ConfigError

#: A vocabulary up to this size is taken whole unless another size is asked for.
SMALL = 50_000
#: What is taken of a larger one, as published drafts do.
USUAL = 32_000


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Target ids in ascending order, and how much of the counted text they are."""

    ids: tuple[int, ...]
    coverage: float | None  # share of the counted tokens; None when none were counted
    counted: int


def count_tokens(tokens: Iterable[Sequence[int]], words: int) -> npt.NDArray[np.int64]:
    """Count every id of a vocabulary of `words`, int64[words]. ConfigError for an id that is not in it."""
    counts = np.zeros(words, np.int64)
    for ids in tokens:
        found = np.bincount(np.asarray(ids, np.int64), minlength=words)
        if len(found) > words:
            raise ConfigError(f"text: got token {len(found) - 1}, expected ids below the target's vocab_size, {words}")
        counts += found
    return counts


def choose(
    counts: npt.NDArray[np.int64], size: int | None, always: Iterable[int], report: Callable[[str], object]
) -> DraftVocabulary:
    """The `size` most frequent ids, those of `always` among them; equally frequent ones by their number.

    Without a `size` a small vocabulary is taken whole, and so is a large one of which nothing was counted, which
    `report` is told. ConfigError for a size beyond the vocabulary, or a smaller one when nothing was counted.
    """
    words = len(counts)
    counted = int(counts.sum())
    wanted = _size(words, counted, size, report)
    first = sorted({token for token in always if 0 <= token < words})
    # A stable sort keeps equal counts in the order of their ids.
    by_count = np.argsort(-counts, kind="stable")
    rest = by_count[~np.isin(by_count, first)][: max(wanted - len(first), 0)].tolist()
    ids = tuple(sorted([*first, *rest]))
    return DraftVocabulary(ids, float(counts[list(ids)].sum() / counted) if counted else None, counted)


def _size(words: int, counted: int, asked: int | None, report: Callable[[str], object]) -> int:
    if asked is not None and asked > words:
        raise ConfigError(f"vocabulary: got size {asked}, expected at most the target's, {words}")
    if asked is not None and asked < words and not counted:
        raise ConfigError(f"vocabulary: got size {asked} of {words} and no text, expected text to choose them by")
    if asked is None and words > SMALL and not counted:
        report(f"the draft has all of the target's {words} tokens; with text it needs {USUAL}, and is faster")
    return asked or (words if words <= SMALL or not counted else USUAL)
