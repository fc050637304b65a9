"""The draft on its own drafts: served rounds unrolled on the chain they drafted, not on committed text.

Axes as in served_rounds.py; X query, key and value side by side, M scored nodes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ....learner.model.eagle3 import Eagle3Draft
from ....learner.training.batch import Batch
from ....policies.objectives.losses import onto_grid, position_weights, soft_losses, teacher_in_draft_vocabulary
from ....policies.objectives.names import Weighting
from .served_rounds import ServedRounds


@dataclass(frozen=True, slots=True, eq=False)
class NodeLosses:
    """Cross-entropy to the teacher at every node of served rounds; only `losses_BRN` carries gradient."""

    losses_BRN: Tensor  # times the position's weight; zero where nothing is scored
    out_of_vocabulary_BRN: Tensor  # bool, judged, but no teacher entry is in the draft's vocabulary


def node_losses(draft: Eagle3Draft, batch: Batch, rounds: ServedRounds, weighting: Weighting) -> NodeLosses:
    """Unroll `draft` over the chains of `rounds`, which are those of the traces in `batch`, and score every node.

    A weight under survival is that of reaching the node on the drafted chain, A = sum_v p(v) q(v) at those before it.
    """
    ids_BRNK, probs_BRNK, can_say_BRN = teacher_in_draft_vocabulary(
        rounds.teacher_ids_BRNK, rounds.teacher_probs_BRNK, draft.target_to_draft_W
    )
    judged_BRN = rounds.judged_mask()
    if not judged_BRN.any():
        return NodeLosses(torch.zeros(judged_BRN.shape, device=draft.device), judged_BRN)
    mask_BRN = judged_BRN & can_say_BRN
    logits_MV = draft.lm_head(chain_hidden(draft, batch, rounds)[mask_BRN]).float()
    losses_M, log_accepts_M = soft_losses(logits_MV, ids_BRNK[mask_BRN], probs_BRNK[mask_BRN])
    weights_BRN = position_weights(onto_grid(log_accepts_M, mask_BRN, float("-inf")), weighting)
    return NodeLosses(onto_grid(losses_M, mask_BRN, 0.0) * weights_BRN, judged_BRN & ~can_say_BRN)


def chain_hidden(draft: Eagle3Draft, batch: Batch, rounds: ServedRounds) -> Tensor:
    """Outputs of the chains of `rounds`, each fed what it drafted, [B, R, N, H], ready for `lm_head`; R at least 1."""
    length, (drafts, nodes) = batch.tokens_BT.shape[1], (rounds.drafted_BRP.shape[2], rounds.judged_mask().shape[2])
    # Drafted tokens follow the text, where no true row looks, and get their projections together with the text's.
    tokens_BY = torch.cat([batch.tokens_BT, rounds.drafted_BRP.flatten(1)], 1)
    chains = draft.begin(tokens_BY, batch.features_BFD, rounds.rows_BR)
    token_qkv_BYX = chains.token_qkv_BTX
    trace_M, round_M = rounds.nodes_BR.nonzero(as_tuple=True)
    fed_from_M = rounds.rows_BR[trace_M, round_M] + 1
    hidden_BRH = []
    for step in range(nodes):
        if step:
            # A step feeds every chain from the position it has reached. Roots differ, so at one step no two chains of
            # a trace are fed from the same position, and each may find its own draft there.
            index_BY = torch.arange(length + nodes, device=draft.device).repeat(len(tokens_BY), 1)
            index_BY[trace_M, fed_from_M + step] = length + round_M * drafts + step - 1
            chains.token_qkv_BTX = _taken(token_qkv_BYX, index_BY)
        hidden_BRH.append(draft.advance(chains))
    return torch.stack(hidden_BRH, 2)


def _taken(token_qkv_BYX: Tensor, index_BY: Tensor) -> Tensor:
    inside_BY = index_BY.clamp(max=token_qkv_BYX.shape[1] - 1)
    return token_qkv_BYX.gather(1, inside_BY[..., None].expand(-1, -1, token_qkv_BYX.shape[2]))
