"""Keeps updates of the target away from the draft.

SGLang's update calls ask `_select_runners` for the models they apply to, and their default is "all". A draft that is a
model of its own is in no checkpoint of the target: it would get tensors of the same name, in silence where they fit,
and where they do not the scheduler dies. An MTP layer is in the target's checkpoints, but what drafts is the board's
choice as well: a layer that came with an update would draft under the number of another version.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from .. import sglang_speculation

log = logging.getLogger(__name__)

REFUSED: Final = (
    "selector: got 'draft', expected 'target' or 'all': paceline's version board decides what drafts on this server, "
    "and 'all' means the target alone; publish a draft there, or stop paceline"
)
#: SGLang's call -> what it answers with. The other two calls have no selector.
ANSWERS: Final = {
    "begin_weight_update": "BeginWeightUpdateReqOutput",
    "update_weights_from_tensor": "UpdateWeightsFromTensorReqOutput",
    "update_weights_from_distributed": "UpdateWeightsFromDistributedReqOutput",
}


class SglangGuard:
    """Runs SGLang's update calls with the target alone selected, where the draft is its own model or the board's.

    paceline's own swaps ask no `_select_runners`, and SGLang's check_weights, which does, still means both.
    """

    def __init__(self, owns_draft: Callable[[], bool]) -> None:
        """`owns_draft`: whether the board decides what drafts; then an update that selects the draft is refused."""
        self._owns_draft = owns_draft
        self._has_own_draft = sglang_speculation.has_draft_of_its_own()
        self._is_updating = False

    def before_select(self, manager: Any, selector: str = "all", *_: Any, **__: Any) -> Any:
        """BEFORE _select_runners: the arguments it gets instead, or None for its own."""
        if self._is_updating and selector == "all" and (self._has_own_draft or self._owns_draft()):
            return (manager, "target"), {}
        return None

    def call(self, update: Callable[..., Any], manager: Any, request: Any, *args: Any, **named: Any) -> Any:
        """What `update` answers, or a refusal of the form it answers in. Raises nothing but what `update` raises."""
        refusal = self._refusal(update, request)
        if refusal is not None:
            return refusal
        self._is_updating = True
        try:
            return update(manager, request, *args, **named)
        finally:
            self._is_updating = False

    def _refusal(self, update: Callable[..., Any], request: Any) -> Any:
        try:
            if getattr(request, "selector", "all") != "draft" or not self._owns_draft():
                return None
            from sglang.srt.managers import io_struct

            log.warning("paceline: %s refused: %s", update.__name__, REFUSED)
            return getattr(io_struct, ANSWERS[update.__name__])(success=False, message=REFUSED)
        except Exception:  # an exception leaving a hook would kill SGLang's scheduler
            log.exception("paceline: an update of the draft cannot be refused")
            return None
