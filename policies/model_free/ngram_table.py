"""A table of what mostly follows the last tokens, over all texts served so far: n-gram drafting with back-off."""

from collections.abc import Sequence

#: Tokens that a row looks back on: the longest known row counts.
LONGEST = 4
#: Rows that are kept; the one that was not seen for longest leaves. Python needs about 200 bytes for each.
MOST_ROWS = 1 << 17


class NgramTable:
    """Learns every token of every text, prompts too, at once: MOST_ROWS rows of LONGEST tokens at most and one after.

    A row holds one candidate and its lead over all others, as in Boyer and Moore's majority vote, but a tie goes to the
    newest: constant memory, where counts of all successors would grow.
    """

    name = "n-gram table"

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._rows: dict[tuple[int, ...], tuple[int, int]] = {}  # oldest first
        self._last: list[int] = []  # of the text at hand, LONGEST at most

    def open(self, tokens: Sequence[int]) -> None:
        """Begin a text; the rows stay."""
        self._last = []
        self.commit(tokens)

    def drafts(self, most: int) -> list[int]:
        """The candidates of the longest known rows, one after another; fewer where no row is known."""
        found: list[int] = []
        last = self._last
        while len(found) < most:
            token = self._after(last)
            if token is None:
                break
            found.append(token)
            last = [*last, token][-LONGEST:]
        return found

    def commit(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`."""
        for token in tokens:
            for length in range(1, len(self._last) + 1):
                self._vote(tuple(self._last[-length:]), token)
            self._last = [*self._last, token][-LONGEST:]

    def _after(self, last: Sequence[int]) -> int | None:
        for length in range(len(last), 0, -1):
            row = self._rows.get(tuple(last[-length:]))
            if row is not None:
                return row[0]
        return None

    def _vote(self, key: tuple[int, ...], token: int) -> None:
        candidate, lead = self._rows.pop(key, (token, 0))
        if candidate == token:
            self._rows[key] = (token, lead + 1)
        else:
            self._rows[key] = (candidate, lead - 1) if lead > 1 else (token, 1)
        if len(self._rows) > self._most_rows:
            del self._rows[next(iter(self._rows))]
