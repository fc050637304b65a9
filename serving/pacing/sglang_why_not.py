"""On which servers the draft must also run while nothing is drafted, and why."""

from typing import Any


def why_not(worker: Any, max_bytes: int) -> str:
    """Why no hidden states are kept; empty where they are. `worker` is SGLang's EAGLEWorkerV2."""
    from sglang.srt.runtime_context import get_parallel, get_schedule, get_spec

    draft_worker = worker.draft_worker
    reasons = {
        "PACELINE_CATCH_UP_BYTES is 0": max_bytes == 0,
        "the server runs without --speculative-adaptive, so it always drafts": worker.adaptive_controller is None,
        "several ranks (--tp-size): a fault of one would leave the others waiting": get_parallel().tp_size > 1,
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
