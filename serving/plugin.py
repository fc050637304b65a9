"""SGLang's entry point into paceline (group ``sglang.srt.plugins``).

Stage 1 (`register`) runs in every SGLang process and touches one target, in the one that answers HTTP two. Stage 2 runs
inside ``Scheduler.init_model_worker``: in the scheduler process alone, before weights are loaded and graphs captured.
Nothing in here may stop the server: a fault turns capture off, with the reason in the log and in the heartbeat.
"""

import logging
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..buffer.errors import CaptureUnavailable, PacelineError
from ..buffer.plain_text import printable
from ..buffer.retention import forbid_core_dumps
from ..buffer.settings.kinds import PacingName
from . import config, hook_targets, sglang_hook_install, sglang_responses, sglang_speculation
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
            if settings.buffer.keeps_nothing:
                forbid_core_dumps()  # in every process of SGLang, since all hold prompts, and so in the courier too
            _hook_scheduler(settings)
            if multiprocessing.parent_process() is None:  # the others would import SGLang's HTTP server for nothing
                _hook_responses()
    except PacelineError as fault:
        log.error("paceline: capture and swaps are off: %s", fault)  # noqa: TRY400 - the message says it all
    except Exception:  # an exception leaving a plugin could keep SGLang from starting
        log.exception("paceline: capture and swaps are off")


def _hook_scheduler(settings: config.ServingConfig) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def start(scheduler: Any, *_: Any, **__: Any) -> None:
        _start(scheduler, settings)

    HookRegistry.register(hook_targets.INIT_MODEL_WORKER, start, HookType.BEFORE)


def _hook_responses() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(hook_targets.HANDLE_REQUEST, sglang_responses.answer, HookType.AROUND)


def _start(scheduler: Any, settings: config.ServingConfig) -> None:
    breaker = Breaker()
    with _giving_up(breaker):
        settings = replace(settings, replica=_replica_name(settings, scheduler))
        _install(_with_canary_turns(_with_kept_states(settings)), breaker, is_entry_rank=_is_entry_rank())


def _replica_name(settings: config.ServingConfig, scheduler: Any) -> str:
    """The setting as text that Redis takes and people can read; every data-parallel rank of a server is a replica."""
    from sglang.srt.runtime_context import get_parallel

    ranks = (getattr(get_parallel(), name, None) for name in ("dp_rank", "attn_dp_rank"))
    rank = next(filter(None, ranks), 0)
    name = printable(settings.replica) or f"{socket.gethostname()}-{scheduler.server_args.port}"
    return f"{name}-dp{rank}" if rank else name


@contextmanager
def _giving_up(breaker: Breaker) -> Iterator[None]:
    """Turn capture off when the body raises: an exception leaving a hook would kill SGLang's scheduler."""
    try:
        yield
    except CaptureUnavailable as fault:
        breaker.open(str(fault))
    except Exception as fault:  # paceline may fail in any way here, and the server must start
        log.exception("paceline: fault while the plugin was installed")
        breaker.open(f"{type(fault).__name__}: {fault}")


def _install(settings: config.ServingConfig, breaker: Breaker, *, is_entry_rank: bool) -> None:
    """Install what every rank runs, and only then what runs on the entry rank alone.

    The second may fail for want of a process or a folder. If that left its rank with other shared hooks than the rest,
    they would choose different draft steps and wait for each other for ever.
    """
    from .replica import build_replica
    from .server_identity import ServerIdentity
    from .shared_parts import build_shared

    identity = ServerIdentity()  # first of all: its start is no later than anything that is counted from
    shared = build_shared(settings)
    with _giving_up(breaker):
        _install_shared(shared, settings.pacing)
    if not is_entry_rank:
        return
    replica = build_replica(settings, breaker, shared, identity)
    if not breaker.is_open:
        with _giving_up(breaker):
            _install_capture(replica.capture, shared, breaker)
            speculator = settings.buffer.speculator
            log.warning("paceline: capture is on, replica %s, stream of %s", settings.replica, speculator)
    replica.start()  # without hooks as well: its heartbeat says why capture is off


def _with_kept_states(settings: config.ServingConfig) -> config.ServingConfig:
    """Without hidden states where SGLang keeps none for a draft, since it has none."""
    if sglang_speculation.has_draft_model() or not settings.capture_features:
        return settings
    log.warning("paceline: NGRAM keeps no hidden states: traces hold tokens alone, as by PACELINE_CAPTURE_FEATURES=0")
    return replace(settings, capture_features=False)


def _with_canary_turns(settings: config.ServingConfig) -> config.ServingConfig:
    """Where replay is no proof, every draft must pass a canary: so this server gives one its turns, if it is alone."""
    why = sglang_speculation.why_replay_is_no_proof()
    if why:
        log.warning("paceline: %s; a learned draft goes live after a canary", why)
    if settings.canary_turn_s is not None:
        return settings
    return replace(settings, canary_turn_s=config.CANARY_TURN_S if why else 0.0)


def _install_shared(shared: Any, pacing: PacingName) -> None:
    from .swap.sglang_resume import after_resume_of

    check_release()
    # Before anything finds that capture cannot be had here: an update would reach a draft that paceline does not swap.
    sglang_hook_install.install(shared.target.hooks())
    hooks: dict[str, tuple[str, Callable[..., Any]]] = {
        hook_targets.PULL_REQUESTS: ("after", shared.swap.after_pull),
        hook_targets.INIT_DISPATCHER: ("after", shared.swap.after_init_dispatcher),
        hook_targets.RESUME_MEMORY: ("after", after_resume_of(shared.swap)),
        hook_targets.RESOLVE_TOKENS: ("before", shared.clock.before_resolve),
        hook_targets.PREFILL_RESULT: ("after", shared.clock.after_prefill),
        hook_targets.STREAM_OUTPUT: ("before", shared.clock.before_stream),
    }
    sglang_speculation.check_speculation()
    is_block = sglang_speculation.drafts_blocks()
    in_one_call = is_block or not sglang_speculation.has_draft_model()
    sglang_hook_install.install(hooks | (shared.forwards.hooks() if in_one_call else _chain_hooks(shared, pacing)))
    shared.clock.start()
    if in_one_call:
        shared.catch_up.refuse(f"the server drafts all it can in every round ({shared.forwards.algorithm})")
    else:
        _install_part(shared.catch_up, shared.catch_up.hooks())
    _install_part(shared.tokens, shared.tokens.block_hooks() if is_block else shared.tokens.hooks())


def _install_part(part: Any, hooks: dict[str, tuple[str, Callable[..., Any]]]) -> None:
    """Install what serving can do without."""
    try:
        sglang_hook_install.install(hooks)
    except CaptureUnavailable as fault:
        part.refuse(str(fault))


def _chain_hooks(shared: Any, pacing: PacingName) -> dict[str, tuple[str, Callable[..., Any]]]:
    """Those of EAGLE's worker, on every rank: with pacing, its steps cost what the clock says."""
    clock = shared.clock

    def before_forward(*arguments: Any, **named: Any) -> None:
        clock.before_forward(*arguments, **named)
        if pacing is not PacingName.OFF:
            shared.pacing.before_forward(*arguments, **named)
        shared.catch_up.before_forward(*arguments, **named)
        shared.tokens.before_forward(*arguments, **named)

    hooks: dict[str, tuple[str, Callable[..., Any]]] = {
        hook_targets.FORWARD: ("before", before_forward),
        hook_targets.ACTIVATE_STEP: ("after", clock.after_activate),
    }
    if pacing is not PacingName.OFF:
        hooks[hook_targets.ADAPTIVE_CONTROLLER] = ("before", shared.pacing.before_controller)
    return hooks


def _install_capture(capture: Any, shared: Any, breaker: Breaker) -> None:
    if sglang_speculation.drafts_blocks():
        shared.forwards.follow(capture, breaker)
        return
    if shared.tokens.fault:
        raise CaptureUnavailable(shared.tokens.fault)
    shared.tokens.after_verify = capture.after_verify
    if not sglang_speculation.has_draft_model():
        shared.forwards.follow(capture, breaker)
        return
    sglang_hook_install.install(
        {
            hook_targets.DRAFT_PREFILL: ("before", capture.before_draft_prefill),
            hook_targets.FORWARD_PREFILL: ("after", capture.after_prefill),
        }
    )


def _is_entry_rank() -> bool:
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return bool(parallel.pp_rank == 0 and parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0)
