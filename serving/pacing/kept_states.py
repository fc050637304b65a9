"""Hidden states of the target that the draft has not read yet: what its cache is caught up from."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Missed:
    """What the draft has not read of one request: a run of committed tokens without a gap."""

    start: int  # position of the first one
    rows: list[int]  # of the buffer, one per position

    @property
    def end(self) -> int:
        """Position after the last one."""
        return self.start + len(self.rows)


class KeptStates:
    """One buffer of at most `max_bytes` for all requests, on the target's device; made when the first row comes.

    A row belongs to one position of one request and holds the target's hidden state there and the token after it,
    which is what an EAGLE-3 draft reads at that position. For one thread; no method asks the device for a value.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._hidden_RD: Tensor | None = None
        self._tokens_R: Tensor | None = None
        self._missed: dict[str, Missed] = {}
        self._used = 0

    def __len__(self) -> int:
        return len(self._missed)

    def room(self, hidden_D: Tensor) -> int:
        """How many more rows like `hidden_D` fit."""
        return self._capacity(hidden_D) - self._used

    @property
    def rows_left(self) -> int | None:
        """How many more rows fit; None before the first one, when their size is not known."""
        return None if self._hidden_RD is None else len(self._hidden_RD) - self._used

    def keep(self, request_ids: Sequence[str], starts: Sequence[int], hidden_BD: Tensor, tokens_B: Tensor) -> None:
        """Copy one row per request, at its next position; `starts` are the positions, read for new requests alone.

        `tokens_B`, integers, are the tokens after these positions. Raises ValueError when the rows do not fit.
        """
        first = self._used
        size = len(request_ids)
        if self.room(hidden_BD[0]) < size:
            raise ValueError(f"kept states: got {size} more rows, expected at most {self.room(hidden_BD[0])}")
        hidden_RD, tokens_R = self._buffers(hidden_BD[0])
        hidden_RD[first : first + size] = hidden_BD[:size]
        tokens_R[first : first + size] = tokens_B[:size]
        self._used += size
        for row, (request_id, start) in enumerate(zip(request_ids, starts, strict=True), first):
            missed = self._missed.get(request_id)
            if missed is None:
                self._missed[request_id] = Missed(start, [row])
            else:
                missed.rows.append(row)

    def missed(self, request_id: str) -> Missed | None:
        """What was kept of a request; None when its draft has read everything."""
        return self._missed.get(request_id)

    def read(self, runs: Sequence[Missed]) -> tuple[Tensor, Tensor]:
        """Hidden states [T, D] and the tokens after them [T], run after run; fresh tensors."""
        assert self._hidden_RD is not None and self._tokens_R is not None  # noqa: S101, PT018 - nothing missed without
        rows = torch.tensor([row for run in runs for row in run.rows]).to(self._hidden_RD.device, non_blocking=True)
        return self._hidden_RD.index_select(0, rows), self._tokens_R.index_select(0, rows)

    def forget(self, request_id: str) -> None:
        """A request is caught up, has ended, or begins anew."""
        self._missed.pop(request_id, None)
        if not self._missed:
            self._used = 0

    def clear(self) -> None:
        """Forget all requests."""
        self._missed.clear()
        self._used = 0

    def _capacity(self, hidden_D: Tensor) -> int:
        return self._max_bytes // (hidden_D.numel() * hidden_D.element_size() + torch.int64.itemsize)

    def _buffers(self, hidden_D: Tensor) -> tuple[Tensor, Tensor]:
        if self._hidden_RD is None or self._tokens_R is None:
            rows = self._capacity(hidden_D)
            self._hidden_RD = hidden_D.new_empty((rows, hidden_D.numel()))
            self._tokens_R = torch.empty(rows, dtype=torch.int64, device=hidden_D.device)
        return self._hidden_RD, self._tokens_R
