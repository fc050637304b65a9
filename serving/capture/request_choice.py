"""Which requests of a batch are captured, and which weights draft and judge them."""

import zlib
from collections.abc import Callable, Container
from typing import Any

from ..wire.counts import CaptureCounts, SkipReason
from .device_output import Chosen, row_index
from .prefill_rows import ends_first_prefill
from .sglang_requests import is_greedy, opts_out

#: Request ids SGLang's own probes begin with.
HEALTH_CHECK_PREFIX = "HEALTH_CHECK"


class RequestChoice:
    """Chooses of each batch when its forward is launched, and counts the requests that are skipped.

    Weights change between two iterations, so both versions are those of the weights that the forward runs with; its
    tokens are committed later, with the overlap schedule after the next forward is launched.
    """

    def __init__(
        self,
        sample_rate: float,
        counts: CaptureCounts,
        draft_version: Callable[[], int],
        target_version: Callable[[], str],
        *,
        takes_adapters: bool = True,
    ) -> None:
        """`takes_adapters`: whether requests with a LoRA adapter are captured."""
        self._sample_rate = sample_rate
        self._counts = counts
        self._draft_version = draft_version
        self._target_version = target_version
        self._takes_adapters = takes_adapters
        self._known: tuple[tuple[str, ...], int, str] | None = None  # request ids of the last batch, and the versions
        self._chosen: Chosen | None = None  # of it
        self.rounds = 0  # verify rounds of captured requests that the hook has seen

    def forget(self) -> None:
        """A new request may have the id of one that has ended."""
        self._known = None

    def choose_again(self, batch: Any) -> Chosen | None:
        """As `choose`, remembered for as long as neither the batch nor a version changes."""
        request_ids = tuple([req.rid for req in batch.reqs or ()])  # a list: a generator takes twice the time
        asked = request_ids, self._draft_version(), self._target_version()
        if asked != self._known:
            self._known = None  # until the choice is made: it may fail
            self._chosen = self.choose(batch)
            self._known = asked
        return self._chosen

    def choose(self, batch: Any, *, is_prefill: bool = False, decoding: Container[int] = ()) -> Chosen | None:
        """The captured requests of a batch, None when there is none; `decoding` rows of a prefill run already."""
        if batch.forward_mode.is_idle() or not batch.reqs:
            return None
        rows = []
        for row, req in enumerate(batch.reqs):
            reason = self._skip_reason(req)
            if reason is None:
                rows.append(row)
            elif is_prefill and row not in decoding and ends_first_prefill(batch, row):
                self._counts.skip(reason)
        if not rows:
            return None
        reqs = [batch.reqs[row] for row in rows]
        greedy = tuple(is_greedy(req.sampling_params) for req in reqs)
        index = None if len(rows) == len(batch.reqs) else row_index(rows, batch.device)
        return Chosen(
            rows=tuple(rows),
            request_ids=tuple(req.rid for req in reqs),
            is_greedy=greedy,
            draft_version=self._draft_version(),
            target_version=self._target_version(),
            is_prefill=is_prefill,
            row_index=index,
        )

    def is_captured(self, req: Any) -> bool:
        """Whether a request of SGLang's is to be captured."""
        return self._skip_reason(req) is None

    def _skip_reason(self, req: Any) -> SkipReason | None:
        if req.rid.startswith(HEALTH_CHECK_PREFIX):
            return SkipReason.HEALTH_CHECK
        if opts_out(req):
            return SkipReason.OPTED_OUT
        if req.lora_id is not None and not self._takes_adapters:
            return SkipReason.LORA
        if req.multimodal_inputs is not None or req.input_embeds is not None:
            return SkipReason.NOT_TEXT
        if self._sample_rate < 1.0 and zlib.crc32(req.rid.encode()) >= self._sample_rate * 2**32:
            return SkipReason.SAMPLED_OUT
        return None
