"""How a server speculates, as its heartbeat says it."""

from typing import Final

import msgspec

#: SGLang's name of the algorithm that drafts without a model.
NGRAM: Final = "NGRAM"


class Speculation(msgspec.Struct, kw_only=True, gc=False):
    """Flags of speculation as SGLang resolved them."""

    algorithm: str | None = None
    num_steps: int | None = None
    eagle_topk: int | None = None
    num_draft_tokens: int | None = None
    adaptive: bool | None = None

    @property
    def has_draft(self) -> bool:
        """Whether a draft's weights propose, or nothing is known."""
        return self.algorithm != NGRAM
