"""What the plugin hooks in SGLang, by dotted name."""

from pkgutil import resolve_name
from typing import Final

#: Stage 1, in every SGLang process; the others are installed from inside it, in the scheduler process alone.
INIT_MODEL_WORKER: Final = "sglang.srt.managers.scheduler.Scheduler.init_model_worker"
EAGLE_SAMPLE: Final = "sglang.srt.speculative.eagle_utils.eagle_sample"
DRAFT_PREFILL: Final = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker._draft_extend_for_prefill"
FORWARD_PREFILL: Final = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2._forward_prefill_batch"
PULL_REQUESTS: Final = (
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver._pull_raw_reqs"
)
INIT_DISPATCHER: Final = "sglang.srt.managers.scheduler.Scheduler.init_request_dispatcher"
ADAPTIVE_CONTROLLER: Final = "sglang.srt.speculative.adaptive_runtime_state.AdaptiveController.__init__"
FORWARD: Final = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation"
TARGETS: Final = (
    INIT_MODEL_WORKER,
    EAGLE_SAMPLE,
    DRAFT_PREFILL,
    FORWARD_PREFILL,
    PULL_REQUESTS,
    INIT_DISPATCHER,
    ADAPTIVE_CONTROLLER,
    FORWARD,
)


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
