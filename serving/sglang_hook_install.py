"""Installs hooks and makes sure that they are live: SGLang only logs a hook it could not apply."""

from collections.abc import Callable, Mapping
from typing import Any

from ..buffer.errors import CaptureUnavailable


def install(hooks: Mapping[str, tuple[str, Callable[..., Any]]]) -> None:
    """Install target -> ("before" | "after" | "around", body) and check each.

    Raises CaptureUnavailable, which names those that are not live.
    A target that another plugin has already patched would be skipped by SGLang silently, so it is refused here.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    taken = sorted(target for target in hooks if target in HookRegistry._patched)  # noqa: SLF001 - no public API
    if taken:
        raise CaptureUnavailable(f"hook targets: got {taken} already patched by another plugin, expected them free")
    for target, (when, body) in hooks.items():
        HookRegistry.register(target, body, HookType(when))
    HookRegistry.apply_hooks()
    dead = sorted(target for target in hooks if target not in HookRegistry._patched)  # noqa: SLF001 - no public API
    if dead:
        raise CaptureUnavailable(f"hook targets: got no {dead} in SGLang, expected all of {sorted(hooks)}")
