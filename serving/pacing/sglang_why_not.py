"""On which servers the draft must also run while nothing is drafted, and why."""

from typing import Any, Final

#: Bytes kept where the setting leaves it open, which is where catching up was measured to pay (docs/pacing.md).
DEFAULT_BYTES: Final = 64 << 20


def why_not(worker: Any, max_bytes: int | None) -> str:
    """Why no hidden states are kept; empty where they are. `worker` is SGLang's EAGLEWorkerV2.

    `max_bytes` as it was set; None leaves it open, and none are kept then where it was not measured to pay.
    """
    from sglang.srt.runtime_context import get_parallel, get_schedule, get_spec

    draft_worker = worker.draft_worker
    is_measured = str(draft_worker.draft_runner.device) == "cpu" and bool(get_schedule().disable_overlap_schedule)
    reasons = {
        "PACELINE_CATCH_UP_BYTES is 0": max_bytes == 0,
        "the server runs without --speculative-adaptive, so it always drafts": worker.adaptive_controller is None,
        "several ranks (--tp-size): a fault of one would leave the others waiting": get_parallel().tp_size > 1,
        "PACELINE_CATCH_UP_BYTES is not set, and by default only a CPU server without overlap schedule catches up": (
            max_bytes is None and not is_measured
        ),
        "--enable-mixed-chunk reads running requests in prefills": bool(get_schedule().enable_mixed_chunk),
        "--speculative-use-rejection-sampling needs the draft's chances": bool(
            get_spec().speculative_use_rejection_sampling
        ),
        "the draft needs more than hidden states to go on": bool(
            getattr(draft_worker, "seed_dsa_topk_from_draft_extend", False)
            or draft_worker.draft_runner.model_config.model_is_mrope
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
