"""Forwards as the scheduler sends them: prompts of three tokens, and rounds of two drafts, the first of them right."""

import numpy as np
from paceline.buffer.stream.trace import Sampling, VerdictRule
from paceline.serving.wire.messages import (
    BEST_IDS,
    FEATURES,
    READ_IDS,
    VERDICTS,
    PrefillHead,
    VerifyHead,
    to_wire,
)
from paceline.serving.wire.request_forward import Commit, RequestFacts

FACTS = RequestFacts(tenant="", sampling=Sampling(), verdict_rule=VerdictRule.GREEDY)
BEGINS = Commit(0, (7,), "")


def prefill(*names, commit=BEGINS):
    """One batch that reads the prompts of all `names`."""
    arrays = {
        READ_IDS: np.tile(np.arange(3, dtype=np.int32), len(names)),
        FEATURES: np.zeros((3 * len(names), 4), np.float32),
    }
    head = PrefillHead(
        request_ids=names,
        draft_version=0,
        target_version="0",
        commits=(commit,) * len(names),
        facts=(FACTS,) * len(names),
        spans=tuple((0, 3 * i, 3 * i + 3) for i in range(len(names))),
    )
    return to_wire(head, arrays)


def verify(name, commit):
    """The first round begins at position 3, the second at 5."""
    root, token = (3, 7) if commit.output_index == 1 else (5, 5)
    arrays = {
        VERDICTS: np.asarray([[token, 8, 9, root, 2]], np.int64),
        FEATURES: np.zeros((2, 4), np.float32),
        BEST_IDS: np.zeros((1, 3), np.int64),
    }
    return to_wire(
        VerifyHead(request_ids=(name,), draft_version=0, target_version="0", commits=(commit,), is_greedy=(True,)),
        arrays,
    )
