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
from . import config, hook_targets, sglang_hook_install, sglang_speculation
from .breaker import Breaker
from .supported_release import check_release

log = logging.getLogger(__name__)


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
    settings = _with_canary_turns(settings)
    replica, is_entry_rank = build_replica(settings, breaker), _is_entry_rank()
    try:
        sglang_speculation.check_disaggregation(scheduler.server_args)
        _install(replica, settings.pacing, is_entry_rank=is_entry_rank)
    except Exception as fault:  # noqa: BLE001 - the replica still says in its heartbeat why capture is off
        _give_up(breaker, fault)
    else:
        log.warning("paceline: capture is on, replica %s, stream of %s", settings.replica, settings.buffer.speculator)
    # The hooks come first: a replica that cannot start, on the one rank that has one, must not leave that rank with
    # other hooks than the rest, or they would choose different draft steps and wait for each other for ever.
    if is_entry_rank:
        replica.start()


def _with_canary_turns(settings: config.ServingConfig) -> config.ServingConfig:
    """Where replay is no proof, every draft must pass a canary: so this server gives one its turns, if it is alone."""
    why = sglang_speculation.why_replay_is_no_proof()
    if why:
        log.warning("paceline: %s; a learned draft goes live after a canary", why)
    if settings.canary_turn_s is not None:
        return settings
    return replace(settings, canary_turn_s=config.CANARY_TURN_S if why else 0.0)


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
    sglang_speculation.check_speculation()
    sglang_hook_install.install(hooks)


def _is_entry_rank() -> bool:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return bool(parallel.pp_rank == 0 and parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0)
