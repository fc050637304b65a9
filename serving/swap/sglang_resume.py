"""Puts the live draft back when SGLang takes memory for weights that it had released, as colocated trainers have it do.

What that memory holds then is random unless SGLang kept a copy. A trainer sends the target again, and nobody the draft.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from .sglang_swap import RankSwap

log = logging.getLogger(__name__)

#: SGLang's name for that memory; without any name, it is all memory.
WEIGHTS: Final = "weights"


def after_resume_of(swap: RankSwap) -> Callable[..., None]:
    """Body AFTER resume_memory_occupation(manager, request); it does not raise."""

    def after_resume(_result: Any, _manager: Any, request: Any, *_: Any, **__: Any) -> None:
        try:
            if not swap.fault and WEIGHTS in (request.tags or [WEIGHTS]):
                swap.put_back()
        except Exception:  # an exception leaving a hook would kill SGLang's scheduler
            log.exception("paceline: the draft was not put back")

    return after_resume
