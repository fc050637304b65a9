"""SGLang's entry point into paceline (group ``sglang.srt.plugins``).

Stage 1 (`register`) runs in every SGLang process and touches one target. Stage 2 runs inside
``Scheduler.init_model_worker``: in the scheduler process alone, before weights are loaded and graphs captured.
Nothing in here may stop the server: a fault turns capture off, with the reason in the log and in the heartbeat.
"""

import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..buffer.errors import CaptureUnavailable, PacelineError
from ..buffer.settings.pacing_names import PacingName
from . import config, hook_targets, sglang_hook_install
from .breaker import Breaker
from .supported_release import check_release

log = logging.getLogger(__name__)

#: Makes SGLang draft chains where it would choose a tree, as it does for every Llama.
CHAIN_FLAGS = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"


def register() -> None:
    """Called by SGLang's plugin loader. Does nothing until PACELINE_REDIS_URL is set; never raises."""
    try:
        for problem in config.unknown_names():
            log.error("paceline: %s; it is ignored", problem)
        settings = config.from_env()
        if settings.redis_url is not None:
            _hook_scheduler(settings)
    except PacelineError as fault:
        log.error("paceline: capture and swaps are off: %s", fault)  # noqa: TRY400 - the message says it all
    except Exception:  # an exception leaving a plugin could keep SGLang from starting
        log.exception("paceline: capture and swaps are off")


def _hook_scheduler(settings: config.ServingConfig) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def start(scheduler: Any, *_: Any, **__: Any) -> None:
        _start(scheduler, settings)

    HookRegistry.register(hook_targets.INIT_MODEL_WORKER, start, HookType.BEFORE)


def _start(scheduler: Any, settings: config.ServingConfig) -> None:
    breaker = Breaker()
    try:
        _install_and_report(scheduler, settings, breaker)
    except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
        _give_up(breaker, fault)


def _give_up(breaker: Breaker, fault: Exception) -> None:
    if isinstance(fault, CaptureUnavailable):
        breaker.open(str(fault))
        return
    log.error("paceline: capture and swaps are off", exc_info=fault)
    breaker.open(f"{type(fault).__name__}: {fault}")


def _install_and_report(scheduler: Any, settings: config.ServingConfig, breaker: Breaker) -> None:
    from .replica import build_replica

    if not settings.replica:
        settings = replace(settings, replica=f"{socket.gethostname()}-{scheduler.server_args.port}")
    replica, is_entry_rank = build_replica(settings, breaker), _is_entry_rank()
    try:
        _install(replica, settings.pacing, is_entry_rank=is_entry_rank)
    except Exception as fault:  # noqa: BLE001 - the replica still says in its heartbeat why capture is off
        _give_up(breaker, fault)
    else:
        log.warning("paceline: capture is on, replica %s, stream of %s", settings.replica, settings.buffer.speculator)
    # The hooks come first: a replica that cannot start, on the one rank that has one, must not leave that rank with
    # other hooks than the rest, or they would choose different draft steps and wait for each other for ever.
    if is_entry_rank:
        replica.start()


def _install(replica: Any, pacing: PacingName, *, is_entry_rank: bool) -> None:
    hooks: dict[str, tuple[str, Callable[..., Any]]] = {
        hook_targets.PULL_REQUESTS: ("after", replica.swap.after_pull),
        hook_targets.INIT_DISPATCHER: ("after", replica.swap.after_init_dispatcher),
    }
    if pacing is not PacingName.OFF:
        hooks |= {
            hook_targets.ADAPTIVE_CONTROLLER: ("before", replica.pacing.before_controller),
            hook_targets.FORWARD: ("before", replica.pacing.before_forward),
        }
    if is_entry_rank:  # one rank captures and talks to Redis; every rank takes part in a swap
        hooks |= {
            hook_targets.EAGLE_SAMPLE: ("after", replica.capture.after_verify),
            hook_targets.DRAFT_PREFILL: ("before", replica.capture.before_draft_prefill),
            hook_targets.FORWARD_PREFILL: ("after", replica.capture.after_prefill),
        }
    check_release()
    _check_algorithm()
    sglang_hook_install.install(hooks)


def _is_entry_rank() -> bool:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return bool(parallel.pp_rank == 0 and parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0)


def _check_algorithm() -> None:
    """Raise CaptureUnavailable unless the server drafts chains with EAGLE3, by SGLang's resolved settings.

    The flags as given stay None wherever SGLang chooses by itself.
    """
    from sglang.srt.runtime_context import get_parallel, get_spec

    spec, parallel = get_spec(), get_parallel()
    if spec.speculative_algorithm != "EAGLE3":
        raise CaptureUnavailable(
            f"speculation: got --speculative-algorithm {spec.speculative_algorithm}, expected EAGLE3"
        )
    if spec.speculative_eagle_topk != 1:
        raise CaptureUnavailable(
            f"speculation: got --speculative-eagle-topk {spec.speculative_eagle_topk}, given or chosen by SGLang for "
            f"this model, expected 1; start the server with {CHAIN_FLAGS}"
        )
    # Since 0.5.22: a verdict that depends on all drafts of a round at once, by none of the rules a trace can name.
    if getattr(spec, "speculative_use_block_verification", False):
        raise CaptureUnavailable("speculation: got --speculative-use-block-verification, expected it off")
    if parallel.dp_size != 1 or parallel.pp_size != 1:
        raise CaptureUnavailable(
            f"parallelism: got --dp-size {parallel.dp_size} and --pp-size {parallel.pp_size}, expected 1 and 1; "
            "run several servers behind SGLang's router instead"
        )
