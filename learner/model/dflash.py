"""DFLASH draft in PyTorch, equal to what SGLang's DFlashDraftModel computes: one forward drafts a whole block.

Axes as in draft.py; J places of a block, L layers, K key-value heads, G query heads per key-value head, P rows of one
part.

The block of row p stands at positions p + 1 on: the embedding of its root, token p + 1, and then that of the mask. All
of its places attend each other and the keys that every layer makes of the target's features up to row p; nothing that
was drafted is fed in. The output at place j, from 1 on, predicts the token there, p + 1 + j.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ...buffer.errors import ConfigError
from .decoder_layer import Attention, GatedMlp
from .dflash_config import DflashConfig
from .draft import Draft, DraftRounds, rows_at

#: Attention scores of one part over all heads, 64 MB.
_SCORES_PER_PART = 1 << 24


class _BlockAttention(Attention):
    """Of Qwen3's kind: queries and keys are normed head by head."""

    def __init__(self, config: DflashConfig) -> None:
        super().__init__(config, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def queries(self, x_BNH: Tensor) -> Tensor:
        """Normed and not rotated, float32 [B, heads, N, C]."""
        queries: Tensor = self.q_norm(self._by_head(self.q_proj(x_BNH)).float())
        return queries

    def keys_values(self, x_BNH: Tensor) -> tuple[Tensor, Tensor]:
        """Keys as queries are, and values, [B, K, N, C] each."""
        return self.k_norm(self._by_head(self.k_proj(x_BNH)).float()), self._by_head(self.v_proj(x_BNH))

    def _by_head(self, x_BNX: Tensor) -> Tensor:
        return x_BNX.view(*x_BNX.shape[:2], -1, len(self.q_norm.weight)).transpose(1, 2)


class _BlockLayer(nn.Module):
    def __init__(self, config: DflashConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = _BlockAttention(config)
        self.mlp = GatedMlp(config)


#: Keys, rotated, and values of the target's features in one layer, [B, K, R, C] each.
_Seen = tuple[Tensor, Tensor]


@dataclass(slots=True, kw_only=True)
class DraftBlocks(DraftRounds):
    """Blocks, all of whose places are drafted already."""

    hidden_BQJH: Tensor  # from place 1 on

    def keep(self, index_BP: Tensor) -> None:
        """Go on with these blocks only (indices into Q, repeats allowed)."""
        self.rows_BQ = self.rows_BQ.gather(1, index_BP)
        kept_BPX = rows_at(self.hidden_BQJH.flatten(2), index_BP)
        self.hidden_BQJH = kept_BPX.view(*index_BP.shape, *self.hidden_BQJH.shape[2:])


class DflashDraft(Draft):
    """Several decoder layers, which share the target's embedding and head."""

    config: DflashConfig

    def __init__(self, config: DflashConfig, embedding: Tensor, target_head: Tensor | None) -> None:
        """`embedding` and `target_head` are the target's, [vocab_size, hidden_size]. ConfigError for other shapes."""
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_width, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(_BlockLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._share(embedding, None, target_head)

    def parameter_of(self, name: str) -> str:
        """Name of the parameter that a weights file calls `name`, with or without `model.`."""
        return name.removeprefix("model.")

    def begin(
        self, tokens_BT: Tensor, features_BFD: Tensor, rows_BQ: Tensor, _opens_text_B: Tensor | None = None
    ) -> DraftBlocks:
        """Draft a block at every row, in parts of rows that fit into memory; see `Draft.begin`.

        Where gradients are wanted a part is computed again in the backward pass, and nothing but its outputs is kept.
        """
        rows = min(features_BFD.shape[1], tokens_BT.shape[1] - 1)
        context = self._context(features_BFD[:, :rows])
        per_row = len(tokens_BT) * self.config.num_attention_heads * self.config.block_size
        most = max(_SCORES_PER_PART // (per_row * (rows + self.config.block_size)), 1)
        parts = [self._part(context, tokens_BT, part_BP) for part_BP in torch.split(rows_BQ, most, 1)]
        return DraftBlocks(rows_BQ=rows_BQ, hidden_BQJH=torch.cat(parts, 1))

    def advance(self, blocks: DraftBlocks) -> Tensor:
        """Return the outputs of the next place, [B, Q, H]. ConfigError past the end of the blocks."""
        if blocks.step == blocks.hidden_BQJH.shape[2]:
            raise ConfigError(
                f"draft steps: got more than {blocks.step}, expected at most those of a block of "
                f"{self.config.block_size}; see PACELINE_DRAFT_STEPS"
            )
        blocks.step += 1
        return blocks.hidden_BQJH[:, :, blocks.step - 1]

    def _context(self, features_BRD: Tensor) -> list[_Seen]:
        """What every layer makes of the target's features."""
        # The streams stay float32 under autocast, as the norms need it.
        context_BRH = self.hidden_norm(self.fc(features_BRD).float())
        positions_BR = torch.arange(features_BRD.shape[1], device=features_BRD.device).expand(features_BRD.shape[:2])
        found = [layer.self_attn.keys_values(context_BRH) for layer in self._layers()]
        return [(self._rotated(keys, positions_BR), values) for keys, values in found]

    def _layers(self) -> list[_BlockLayer]:
        return [layer for layer in self.layers if isinstance(layer, _BlockLayer)]

    def _part(self, context: list[_Seen], tokens_BT: Tensor, rows_BP: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self._blocks(context, tokens_BT, rows_BP)
        found: Tensor = checkpoint(self._blocks, context, tokens_BT, rows_BP, use_reentrant=False)
        return found

    def _blocks(self, context: list[_Seen], tokens_BT: Tensor, rows_BP: Tensor) -> Tensor:
        """Normed outputs of all places but the root's, [B, P, J - 1, H]."""
        size = self.config.block_size
        masked_BPJ = torch.full((*rows_BP.shape, size - 1), self.config.mask_token_id, device=rows_BP.device)
        block_BPJ = torch.cat([tokens_BT.gather(1, rows_BP + 1)[..., None], masked_BPJ], -1)
        places_J = torch.arange(size, device=rows_BP.device)
        positions_BX = (rows_BP[..., None] + 1 + places_J).flatten(1)
        stream_BXH = functional.embedding(block_BPJ, self.embedding_WH).flatten(1, 2)
        for layer, seen in zip(self._layers(), context, strict=True):
            normed_BXH = layer.input_layernorm(stream_BXH)
            queries = self._rotated(layer.self_attn.queries(normed_BXH), positions_BX)
            keys, values = layer.self_attn.keys_values(normed_BXH)
            mixed_BXH = _attend(queries, seen, (self._rotated(keys, positions_BX), values), rows_BP)
            stream_BXH = stream_BXH + layer.self_attn.o_proj(mixed_BXH)
            stream_BXH = stream_BXH + layer.mlp(layer.post_attention_layernorm(stream_BXH))
        outputs_BXH: Tensor = self.norm(stream_BXH)
        return outputs_BXH.view(*block_BPJ.shape, -1)[:, :, 1:]


def _attend(queries: Tensor, context: _Seen, own: _Seen, rows_BP: Tensor) -> Tensor:
    """One softmax over the context's keys up to each block's row and the block's own; [B, P * J, heads * C].

    `queries` are [B, heads, P * J, C], the two of `own` [B, K, P * J, C].
    """
    keys_BKRC, values_BKRC = context
    rows, width = keys_BKRC.shape[2:]
    parts = rows_BP.shape[1]
    own_keys, own_values = (x.reshape(*keys_BKRC.shape[:2], 1, parts, -1, width) for x in own)
    query = queries.reshape(*keys_BKRC.shape[:2], -1, *own_keys.shape[3:]) * width**-0.5  # [B, K, G, P, J, C]
    is_later_BPR = torch.arange(rows, device=rows_BP.device) > rows_BP[..., None]
    scores = (query.flatten(2, 4) @ keys_BKRC.mT).view(*query.shape[:5], rows)
    scores = scores.masked_fill(is_later_BPR[:, None, None, :, None], float("-inf"))
    shares = torch.cat([scores, query @ own_keys.mT], -1).softmax(-1)
    of_context = (shares[..., :rows].flatten(2, 4) @ values_BKRC).view(query.shape)
    mixed: Tensor = of_context + shares[..., rows:] @ own_values
    return mixed.flatten(1, 2).flatten(2, 3).transpose(1, 2).flatten(2)
