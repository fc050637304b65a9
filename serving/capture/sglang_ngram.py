"""Hooks of NGRAM, which drafts from a table of n-grams. Its rounds come by eagle_sample, as those of EAGLE do."""

from collections.abc import Callable
from typing import Any

from .. import hook_targets
from .sglang_forwards import SglangForwards


class SglangNgram(SglangForwards):
    """Tells capture of prefills, without hidden states: NGRAM's server keeps none."""

    algorithm = "NGRAM"

    def hooks(self) -> dict[str, tuple[str, Callable[..., Any]]]:
        """What to install."""
        return {hook_targets.NGRAM_FORWARD: ("around", self.around_forward)}

    def _begin(self, worker: Any, batch: Any) -> None:
        super()._begin(worker, batch)
        if self._capture is not None and self._is_prefill:
            self._capture.before_draft_prefill(worker, batch, None)
