"""Prompt lookup: what followed the last time these tokens came in the same text (Saxena 2023)."""

from collections.abc import Sequence

#: Tokens that must have come before: the longest match counts.
LONGEST = 4


class PromptLookup:
    """Keeps one text and, for its runs of 1 to LONGEST tokens, where each came last; nothing of earlier texts."""

    name = "prompt lookup"

    def __init__(self) -> None:
        self.open(())

    def open(self, tokens: Sequence[int]) -> None:
        """Begin a text; the one before is forgotten."""
        self._text: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}  # run -> place of the token after its last occurrence
        self.commit(tokens)

    def drafts(self, most: int) -> list[int]:
        """What followed the last occurrence of the longest run that ends the text; none where no run came before."""
        for length in range(min(LONGEST, len(self._text)), 0, -1):
            place = self._follows.get(tuple(self._text[-length:]))
            if place is not None:
                return self._text[place : place + most]
        return []

    def commit(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`."""
        for token in tokens:
            place = len(self._text)
            for length in range(1, min(LONGEST, place) + 1):
                self._follows[tuple(self._text[place - length :])] = place
            self._text.append(token)
