"""Replay identity in low precision: does the draft, run over its own traces, propose what it proposed when it served?

Where the server rounds to bfloat16, a near-tie may be decided differently. So a share is reported, and for each node
that differs its margin: by how many nats the replay prefers its own token to the one the server drafted, next to the
usual margin between the replay's best two. Rounding causes small margins only; a fault would cause large ones.
Axes: Q rounds, H hidden size, V draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...buffer.stream.trace import NO_DRAFT, DraftTrace
from ...learner.judging.replay import replay_traces
from ...learner.model.draft import Draft
from ...learner.model.draft_io import load_draft, load_target_embedding
from ...learner.training.batch import collate, draftable_rows
from ...policies.acceptance import identity
from .checks import Finding

#: Required where arithmetic is float32 on both sides; elsewhere the share is reported.
FLOAT32_SHARE = 0.999


@dataclass(slots=True)
class Nodes:
    """Drafted tokens compared with the replay's, without those after the first rejection."""

    compared: int = 0
    margins_off: list[float] = field(default_factory=list)  # nats, of nodes where the replay drafts another token
    margins: list[float] = field(default_factory=list)  # nats between the replay's best two, of all nodes

    def finding(self, name: str, *, must_equal: bool) -> Finding:
        """The share, and the margins where it falls short."""
        equal = self.compared - len(self.margins_off)
        off = f"; margins where it differs: median {np.median(self.margins_off):.2g}, " if self.margins_off else ""
        off += f"max {max(self.margins_off):.2g} nats (usual {np.median(self.margins):.2g})" if off else ""
        is_right = equal >= FLOAT32_SHARE * self.compared > 0 if must_equal else None
        return Finding(
            name=name,
            found=f"{equal} of {self.compared}{off}",
            wanted=_wanted(must_equal),
            cases=self.compared,
            is_right=is_right,
        )


def served_draft(draft: Path, target: Path, dtype: str, device: str) -> Draft:
    """The draft with its weights rounded as the server rounds them, computing in float32."""
    loaded = load_draft(draft, load_target_embedding(target)).to(device)
    for tensor in (*loaded.parameters(), loaded.embedding_WH):
        tensor.data.copy_(tensor.to(getattr(torch, dtype)).float())
    return loaded


def replay_findings(draft: Draft, traces: Sequence[DraftTrace], *, steps: int, dtype: str, label: str) -> list[Finding]:
    """Accepted counts round by round and drafted tokens node by node, in float32 and, where served so, in bfloat16."""
    exact = [trace for trace in traces if trace.replay_exact]
    findings = []
    for low in (False, True) if dtype == "bfloat16" else (False,):
        with torch.autocast(draft.device.type, torch.bfloat16, enabled=low):
            name = f"{label}, replayed in {'bfloat16' if low else 'float32'}"
            must_equal = dtype == "float32"
            findings.append(_counts(draft, exact, steps, name, must_equal=must_equal))
            nodes = drafted_nodes(draft, exact, steps)
            findings.append(nodes.finding(f"{name}: drafted tokens", must_equal=must_equal))
    return findings


@torch.inference_mode()
def drafted_nodes(draft: Draft, traces: Sequence[DraftTrace], steps: int) -> Nodes:
    """Compare each draft whose predecessors in its verify round were all committed."""
    nodes = Nodes()
    for trace in traces:
        if draftable_rows(trace) and len(trace.rounds):
            _compare(draft, trace, steps, nodes)
    return nodes


def _counts(draft: Draft, traces: Sequence[DraftTrace], steps: int, name: str, *, must_equal: bool) -> Finding:
    pairs = [identity(trace, runs) for trace, runs in zip(traces, replay_traces(draft, traces, steps), strict=True)]
    equal = sum(pair[0] for pair in pairs)
    compared = sum(pair[1] for pair in pairs)
    is_right = equal >= FLOAT32_SHARE * compared > 0 if must_equal else None
    return Finding(
        name=f"{name}: accepted counts",
        found=f"{equal} of {compared}",
        wanted=_wanted(must_equal),
        cases=compared,
        is_right=is_right,
    )


def _compare(draft: Draft, trace: DraftTrace, steps: int, nodes: Nodes) -> None:
    batch = collate([trace], draft.device, every_row=True)
    rounds = trace.rounds
    can_draft_Q = (rounds.starts >= 1) & (rounds.starts <= draftable_rows(trace))
    starts_Q = rounds.starts[can_draft_Q]
    drafted_QS = rounds.drafted[can_draft_Q]
    accepted_Q = trace.visible_accepted()[can_draft_Q]
    rows_BQ = torch.from_numpy(starts_Q.astype(np.int64) - 1).to(draft.device)[None]
    chains = draft.begin(batch.tokens_BT, batch.features_BFD, rows_BQ, batch.opens_text_B)
    for step in range(min(steps, drafted_QS.shape[1])):
        logits_QV = draft.lm_head(draft.advance(chains)[0]).float()
        is_compared_Q = (accepted_Q >= step) & (drafted_QS[:, step] != NO_DRAFT)
        _compare_step(draft, logits_QV[is_compared_Q], drafted_QS[is_compared_Q, step], nodes)


def _compare_step(draft: Draft, logits_NV: Tensor, drafted_N: np.ndarray, nodes: Nodes) -> None:
    served_N = draft.target_to_draft_W[torch.from_numpy(drafted_N.astype(np.int64)).to(draft.device)]
    best = logits_NV.topk(2, dim=-1)
    lead_N = best.values[:, 0] - logits_NV.gather(1, served_N[:, None])[:, 0]
    nodes.compared += len(served_N)
    nodes.margins += (best.values[:, 0] - best.values[:, 1]).tolist()
    nodes.margins_off += lead_N[best.indices[:, 0] != served_N].tolist()


def _wanted(must_equal: bool) -> str:
    return f">= {FLOAT32_SHARE:.1%}" if must_equal else "reported"
