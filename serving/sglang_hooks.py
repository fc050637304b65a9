"""Installs hooks and makes sure that they are live: SGLang only logs a hook it could not apply."""

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import Any

from ..buffer.errors import CaptureUnavailable

#: Releases whose hook targets were checked by running them.
SUPPORTED = frozenset({"0.5.21"})

#: Stage 1, in every SGLang process; stage 2 hooks are installed from inside it, in the scheduler alone.
INIT_MODEL_WORKER = "sglang.srt.managers.scheduler.Scheduler.init_model_worker"
EAGLE_SAMPLE = "sglang.srt.speculative.eagle_utils.eagle_sample"
DRAFT_PREFILL = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker._draft_extend_for_prefill"
FORWARD_PREFILL = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2._forward_prefill_batch"
PULL_REQUESTS = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver._pull_raw_reqs"
INIT_DISPATCHER = "sglang.srt.managers.scheduler.Scheduler.init_request_dispatcher"
ADAPTIVE_CONTROLLER = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.__init__"
FORWARD = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation"
TARGETS = (
    INIT_MODEL_WORKER,
    EAGLE_SAMPLE,
    DRAFT_PREFILL,
    FORWARD_PREFILL,
    PULL_REQUESTS,
    INIT_DISPATCHER,
    ADAPTIVE_CONTROLLER,
    FORWARD,
)


def check_version() -> str:
    """The installed SGLang's version; CaptureUnavailable when there is none or it is not a supported one."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        raise CaptureUnavailable("SGLang is not installed: pip install sglang==0.5.21") from None
    if found not in SUPPORTED:
        raise CaptureUnavailable(f"SGLang: got version {found}, expected one of {sorted(SUPPORTED)}")
    return found


def missing_targets() -> dict[str, str]:
    """Hook targets the installed SGLang does not have, with the reason; imports it (seconds)."""
    missing = {}
    for target in TARGETS:
        owner, _, name = target.rpartition(".")
        try:
            getattr(resolve_name(owner), name)
        except (ImportError, AttributeError) as fault:
            missing[target] = str(fault)
    return missing


def install(hooks: Mapping[str, tuple[str, Callable[..., Any]]]) -> None:
    """Install target -> ("before" | "after", body) and check each; CaptureUnavailable names those that are not live.

    A target another plugin has patched already would be skipped by SGLang without a word, so it is refused here.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    taken = sorted(target for target in hooks if target in HookRegistry._patched)  # noqa: SLF001 - no public question
    if taken:
        raise CaptureUnavailable(f"hook targets: got {taken} patched by another plugin already, expected them free")
    for target, (when, body) in hooks.items():
        HookRegistry.register(target, body, HookType(when))
    HookRegistry.apply_hooks()
    dead = sorted(target for target in hooks if target not in HookRegistry._patched)  # noqa: SLF001 - same
    if dead:
        raise CaptureUnavailable(f"hook targets: got no {dead} in SGLang, expected all of {sorted(hooks)}")


def _main() -> int:
    """`paceline check`: exit code 1, and why, when capture would be off."""
    try:
        found = check_version()
    except CaptureUnavailable as fault:
        sys.stderr.write(f"paceline: capture would be off: {fault}\n")
        return 1
    missing = missing_targets()
    for target, why in missing.items():
        sys.stderr.write(f"paceline: capture would be off: SGLang {found} has no {target}: {why}\n")
    if not missing:
        sys.stdout.write(f"SGLang {found}: every hook target is there\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(_main())
