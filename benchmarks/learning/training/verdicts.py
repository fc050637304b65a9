"""What served rounds proposed and what was accepted of it, at the rows they were drafted from.

Axes as in learner/training/batch.py; P proposed drafts of a served round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ....buffer.trace import NO_DRAFT, DraftTrace
from ....learner.model.eagle3 import Eagle3Draft
from ....learner.training.batch import Batch, verdict_rows


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Verdicts of B traces, at the rows of their Batch."""

    proposed_BQP: Tensor  # int64 target ids that a round served from this row proposed; NO_DRAFT where it did not
    accepted_BQ: Tensor  # int64, proposals accepted; -1 at rows no round was served from


@dataclass(frozen=True, slots=True, eq=False)
class JudgedProposals:
    """Proposals in the draft's vocabulary, as far as draft steps reach."""

    ids_BQS: Tensor  # int64 draft ids; -1: none, or outside its vocabulary
    asked_BQS: Tensor  # bool, the server judged the proposal and it predicts a token inside the trace
    accepted_BQ: Tensor


def collate_verdicts(traces: Sequence[DraftTrace], device: torch.device) -> Verdicts:
    """Verdicts of `traces`, each with a row to draft from: row p drafts for the root at p + 1."""
    rows = [verdict_rows(trace) for trace in traces]
    shape = len(traces), max(map(len, rows))
    proposed_BQP = np.full((*shape, max(trace.rounds.drafted.shape[1] for trace in traces)), NO_DRAFT, np.int64)
    accepted_BQ = np.full(shape, -1, np.int64)
    for trace, trace_rows, proposed_QP, accepted_Q in zip(traces, rows, proposed_BQP, accepted_BQ, strict=True):
        _, at, of = np.intersect1d(trace_rows, trace.rounds.starts - 1, return_indices=True)
        proposed_QP[at, : trace.rounds.drafted.shape[1]] = trace.rounds.drafted[of]
        accepted_Q[at] = trace.rounds.accepted[of]
    return Verdicts(torch.from_numpy(proposed_BQP).to(device), torch.from_numpy(accepted_BQ).to(device))


def judged_proposals(draft: Eagle3Draft, batch: Batch, verdicts: Verdicts, steps: int) -> JudgedProposals:
    """The proposals of `verdicts`, which are those of the traces in `batch`, cut or padded to `steps`."""
    given_BQS = functional.pad(verdicts.proposed_BQP, (0, max(steps - verdicts.proposed_BQP.shape[-1], 0)), value=-1)
    given_BQS = given_BQS[..., :steps]
    ids_BQS = torch.where(given_BQS >= 0, draft.target_to_draft_W[given_BQS.clamp(min=0)], -1)
    # The first rejected proposal was judged too, and none after it; accepted is -1 where no round was served.
    reached_BQS = torch.arange(steps, device=draft.device) <= verdicts.accepted_BQ[..., None]
    asked_BQS = reached_BQS & (given_BQS >= 0) & batch.scored_mask(steps)
    return JudgedProposals(ids_BQS, asked_BQS, verdicts.accepted_BQ)
