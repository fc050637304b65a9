"""Names from earlier releases, and what to set instead."""

from typing import Final

#: Old name -> new name, both without PACELINE_.
RENAMED: Final = {
    "BACKLOG_BYTES": "CAPTURE_MEMORY_BYTES",
    "CANARY_WINDOW_S": "CANARY_TURN_S",
    "FEATURES": "CAPTURE_FEATURES",
    "ROLL_OUT_S": "STAGGER_S",
    "TAP_BYTES": "CAPTURE_MEMORY_BYTES",
    "TOP_K": "TEACHER_TOP_K",
    "WINDOW_TOKENS": "TRACE_TOKENS",
    "WINDOW_TRACES": "REPLAY_TRACES",
}

_NO_WINDOW = "drafts are judged on all new requests before they learn them"

#: Deleted name, without PACELINE_ -> why nobody needs it.
DELETED: Final = {
    "BUFFER_GROUP": "every learner of a speculator reads the stream in one group",
    "CONTEXT_TOKENS": "it is a quarter of PACELINE_TRACE_TOKENS",
    "GREEDY_TOP_K": "it is 1: greedy requests are judged and labelled by the best token alone",
    "HOLDOUT_REQUESTS": _NO_WINDOW,
    "HOLDOUT_WINDOW": _NO_WINDOW,
    "LONGEST_ROUND_S": "it is an hour",
    "MAX_CLAIM": "it is 400, or PACELINE_MIN_NEW_TRACES if that is more",
    "MIN_HOLDOUT_REQUESTS": _NO_WINDOW,
    "SEED": "it is always 0",
}
