"""Forwards as the courier gets them, made by hand: for tests that count rounds."""

import numpy as np
from paceline.buffer.stream.trace import FeatureDtype, Sampling, VerdictRule
from paceline.serving.wire.request_forward import Commit, RequestFacts, RequestPrefill, RequestVerify

GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.7)
EDITED = Sampling(temperature=0.7, edited=True)
KINDS = {"greedy": GREEDY, "sampled": SAMPLED, "edited": EDITED}
NO_ROWS = np.zeros((0, 0), np.float32)
NO_IDS = np.zeros((0, 0), np.int32)
NO_LOGPROBS = np.zeros((0, 0), np.float16)


def prefill(name, label="", kind="greedy", finish=""):
    facts = RequestFacts(tenant="", sampling=KINDS[kind], verdict_rule=VerdictRule.GREEDY, label=label)
    commit = Commit(0, (7,), finish)
    return RequestPrefill(name, 0, "0", facts, 0, np.arange(3), NO_ROWS, FeatureDtype.FLOAT32, commit)


def verify(name, draft, accepted, width=3, finish="", tokens=(1,), tree=None, drafted=None, output=1, root=3):
    drafted = np.ones(width, np.int32) if drafted is None else np.asarray(drafted, np.int32)
    rows = NO_IDS, NO_LOGPROBS, NO_ROWS
    commit = Commit(output, tokens, finish)
    return RequestVerify(name, draft, "0", root, 7, drafted, accepted, *rows, FeatureDtype.FLOAT32, commit, tree)
