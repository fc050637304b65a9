"""Hook bodies around SGLang's weight updates: guard each of them, and note what it made of the target.

SGLang handles updates in the scheduler thread between two iterations, on every rank.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from .. import hook_targets
from .sglang_guard import REFUSED, SglangGuard
from .target_updates import TargetUpdates

log = logging.getLogger(__name__)

#: SGLang's --weight-version when nobody gave one.
UNNAMED: Final = "default"
#: How messages of a refused or failed load begin that had written nothing.
WROTE_NOTHING: Final = (
    REFUSED,
    "update_weights_from_",  # ... must run between begin_weight_update() and end_weight_update()
    "Online weight updates are not supported",
    "Failed to get model loader",
    "Failed to get weights iterator",
    "Failed to receive weights",
    "IPC weight update failed: ImportError",
)


def first_version(fallback: str) -> str:
    """The version that the server was started with, by --weight-version; else `fallback`."""
    from sglang.srt.runtime_context import get_serving

    named = str(get_serving().weight_version)
    return fallback if named == UNNAMED else named


class SglangTarget:
    """Hook bodies. None raises anything of its own; once one has failed, nothing is captured any more."""

    def __init__(self, guard: SglangGuard, updates: TargetUpdates) -> None:
        self.updates = updates
        self._guard = guard
        self._is_for_target = True  # the call under way
        self._has_loaded = False  # it
        self._is_tried = False  # a load, in the open session

    def hooks(self) -> Mapping[str, tuple[str, Callable[..., Any]]]:
        """As `sglang_hook_install.install` takes them."""
        return {
            hook_targets.SELECT_RUNNERS: ("before", self._guard.before_select),
            hook_targets.BEGIN_UPDATE: ("around", self.around_begin),
            **dict.fromkeys(hook_targets.LOADS, ("around", self.around_load)),
            hook_targets.END_UPDATE: ("around", self.around_end),
            hook_targets.RECORD_UPDATE: ("after", self.after_record),
            hook_targets.NAME_VERSION: ("after", self.after_name),
            hook_targets.FLUSH_CACHE: ("after", self.after_flush),
        }

    def around_begin(self, begin: Callable[..., Any], manager: Any, request: Any, *args: Any, **named: Any) -> Any:
        """AROUND begin_weight_update, which opens a session."""
        result = self._guard.call(begin, manager, request, *args, **named)
        self._quietly(self._note_begin, request, result)
        return result

    def around_load(self, load: Callable[..., Any], manager: Any, request: Any, *args: Any, **named: Any) -> Any:
        """AROUND each update_weights_from_*: the whole update, or a part of an open session."""
        self._quietly(self._note_load, request)
        result = self._guard.call(load, manager, request, *args, **named)
        self._quietly(self._note_loaded, manager, result)
        return result

    def around_end(self, end: Callable[..., Any], manager: Any, request: Any, *args: Any, **named: Any) -> Any:
        """AROUND end_weight_update, which closes the session."""
        result = self._guard.call(end, manager, request, *args, **named)
        self._quietly(self._note_end, manager, result)
        return result

    def after_record(self, _result: Any, _manager: Any, weight_version: str | None = None, *_: Any, **__: Any) -> None:
        """AFTER record_weight_version_after_update: a load wrote all it had, whatever becomes of the flush after it."""
        self._quietly(self._note_record, weight_version)

    def after_name(self, _result: Any, _scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
        """AFTER handle_update_weight_version: the trainer names the weights that are there."""
        self._quietly(lambda: self.updates.renamed(request.new_version))

    def after_flush(self, is_flushed: Any, *_: Any, **__: Any) -> None:
        """AFTER flush_cache, which refuses while requests run."""
        if is_flushed:
            self._quietly(self.updates.flushed)

    def _note_begin(self, request: Any, result: Any) -> None:
        if result.success and request.selector != "draft":
            self._is_tried = False
            self.updates.open()

    def _note_load(self, request: Any) -> None:
        self._is_for_target = getattr(request, "selector", "all") != "draft"
        self._has_loaded = False
        self.updates.begin_call()

    def _note_record(self, weight_version: str | None) -> None:
        if self._is_for_target:
            self._has_loaded = True
            self.updates.loaded(weight_version)

    def _note_loaded(self, manager: Any, result: Any) -> None:
        self._is_tried = True
        if not self._is_for_target:
            return
        if not self._has_loaded and not result.message.startswith(WROTE_NOTHING):
            self.updates.failed(result.message)
        self.updates.end_call(lambda: _has_cached_prompts(manager))

    def _note_end(self, manager: Any, result: Any) -> None:
        if result.success and self.updates.is_open:
            self.updates.close(lambda: _has_cached_prompts(manager), is_tried=self._is_tried)

    def _quietly(self, body: Callable[..., None], *args: Any) -> None:
        try:
            body(*args)
        except Exception as fault:  # an exception leaving a hook would kill SGLang's scheduler
            log.exception("paceline: what an update made of the target is not known")
            self.updates.lose_track(f"{type(fault).__name__}: {fault}")


def _has_cached_prompts(manager: Any) -> bool:
    """Whether the radix cache holds anything; a cache that cannot tell may."""
    try:
        tokens = manager.scheduler.tree_cache.total_size()
    except NotImplementedError:  # SGLang 0.5.21 has no such count where the radix cache is off
        return False
    except Exception:  # there are many kinds of caches, and this is a word of warning
        log.exception("paceline: how much is cached is not known")
        return True
    return any(tokens) if isinstance(tokens, tuple) else bool(tokens)
