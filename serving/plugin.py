"""SGLang's entry point into paceline (group ``sglang.srt.plugins``).

Stage 1 (`register`) runs in every SGLang process and touches one target. Stage 2 runs inside
``Scheduler.init_model_worker``: in the scheduler process alone, before weights are loaded and graphs captured.
Nothing in here may stop the server: a fault turns capture off, says so in the log and in the replica's heartbeat.
"""

import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..buffer.errors import CaptureUnavailable, PacelineError
from . import config
from .breaker import Breaker

log = logging.getLogger(__name__)


def register() -> None:
    """Called by SGLang's plugin loader. Does nothing until PACELINE_REDIS_URL is set; never raises."""
    try:
        settings = config.from_env()
    except PacelineError as fault:
        log.error("paceline: capture and swaps are off: %s", fault)  # noqa: TRY400 - the message says it all
        return
    if settings.redis_url is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from .sglang_hooks import INIT_MODEL_WORKER

    HookRegistry.register(INIT_MODEL_WORKER, lambda scheduler, *_, **__: _start(scheduler, settings), HookType.BEFORE)


def _start(scheduler: Any, settings: config.ServingConfig) -> None:
    breaker = Breaker()
    try:
        _install(scheduler, settings, breaker)
    except CaptureUnavailable as fault:
        breaker.open(str(fault))
    except Exception as fault:  # an exception leaving a hook would kill SGLang's scheduler
        log.exception("paceline: capture and swaps are off")
        breaker.open(f"{type(fault).__name__}: {fault}")


def _install(scheduler: Any, settings: config.ServingConfig, breaker: Breaker) -> None:
    from .replica import build_replica
    from .sglang_hooks import (
        ADAPTIVE_CONTROLLER,
        DRAFT_PREFILL,
        EAGLE_SAMPLE,
        FORWARD,
        FORWARD_PREFILL,
        INIT_DISPATCHER,
        PULL_REQUESTS,
        check_version,
        install,
    )

    if not settings.replica:
        settings = replace(settings, replica=f"{socket.gethostname()}-{scheduler.server_args.port}")
    replica = build_replica(settings, breaker)
    hooks: dict[str, tuple[str, Callable[..., Any]]] = {
        PULL_REQUESTS: ("after", replica.swap.after_pull),
        INIT_DISPATCHER: ("after", replica.swap.after_init_dispatcher),
    }
    if settings.pacing is not config.PacingName.OFF:
        hooks |= {
            ADAPTIVE_CONTROLLER: ("before", replica.pacing.before_controller),
            FORWARD: ("before", replica.pacing.before_forward),
        }
    if _is_entry_rank():  # one rank captures and talks to Redis; every rank takes part in a swap
        replica.start()
        hooks |= {
            EAGLE_SAMPLE: ("after", replica.capture.after_verify),
            DRAFT_PREFILL: ("before", replica.capture.before_draft_prefill),
            FORWARD_PREFILL: ("after", replica.capture.after_prefill),
        }
    check_version()
    _check_algorithm(scheduler.server_args)
    install(hooks)
    log.warning("paceline: capture is on, replica %s, stream of %s", settings.replica, settings.buffer.speculator)


def _is_entry_rank() -> bool:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return bool(parallel.pp_rank == 0 and parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0)


def _check_algorithm(server_args: Any) -> None:
    algorithm, top_k = server_args.speculative_algorithm, server_args.speculative_eagle_topk
    if algorithm != "EAGLE3" or top_k != 1:
        raise CaptureUnavailable(
            f"speculation: got --speculative-algorithm {algorithm} with --speculative-eagle-topk {top_k}, "
            "expected EAGLE3 with 1"
        )
    if server_args.dp_size != 1 or server_args.pp_size != 1:
        raise CaptureUnavailable(
            f"parallelism: got --dp-size {server_args.dp_size} and --pp-size {server_args.pp_size}, expected 1 and 1; "
            "run several servers behind SGLang's router instead"
        )
