"""A draft of one decoder layer that drafts chains, fed its own hidden states: EAGLE-3, and the MTP layer of a target.

Axes as in draft.py; K key-value heads, G query heads per key-value head, X query, key and value side by side, Y what a
kind of draft makes of a token alone.

Row p takes the embedding of token p + 1 and the target's feature at position p, and its step 0 predicts token
p + 2; step k takes its own hidden output of step k - 1 with token p + 1 + k at rope position p + k, and predicts
token p + 2 + k. A step attends the keys of true features up to row p, then the keys of its own earlier steps.
"""

from abc import abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .decoder_layer import DecoderLayer, Midlayer
from .draft import Draft, DraftRounds, head_rows_at, rows_at


@dataclass(frozen=True, slots=True)
class WayIn:
    """What every step makes its row of, beside the hidden state that it is fed."""

    tokens_BTY: Tensor  # of every token: linear in its embedding, and so the same at every step
    weights: tuple[Tensor, ...]  # put together once for all steps


@dataclass(slots=True, kw_only=True)
class DraftChains(DraftRounds):
    """Draft chains in the making, one per row of `rows_BQ`: what the next step needs of those before it."""

    hidden_BQH: Tensor  # what the next step is fed; of step 0, its residual stream
    way_in: WayIn
    true_queries_BHRC: Tensor
    true_keys_BKRC: Tensor
    true_values_BKRC: Tensor
    own_keys_BKQC: list[Tensor] = field(default_factory=list)
    own_values_BKQC: list[Tensor] = field(default_factory=list)

    def hand_over(self, index_BQ: Tensor) -> None:
        """Feed every chain the hidden state of another one (indices into Q); it keeps its own keys and values."""
        self.hidden_BQH = rows_at(self.hidden_BQH, index_BQ)

    def keep(self, index_BP: Tensor) -> None:
        """Go on with these chains only (indices into Q, repeats allowed)."""
        self.rows_BQ = self.rows_BQ.gather(1, index_BP)
        self.hidden_BQH = rows_at(self.hidden_BQH, index_BP)
        self.own_keys_BKQC = [head_rows_at(keys, index_BP) for keys in self.own_keys_BKQC]
        self.own_values_BKQC = [head_rows_at(values, index_BP) for values in self.own_values_BKQC]


class ChainDraft(Draft):
    """What a draft does that is fed what it drafted."""

    midlayer: DecoderLayer | Midlayer

    @abstractmethod
    def _first_hidden(self, features_BRD: Tensor) -> Tensor:
        """The hidden states that step 0 is fed, float32 [B, R, H]."""

    @abstractmethod
    def _way_in(self, tokens_BT: Tensor, opens_text_B: Tensor | None) -> WayIn:
        """What of a step's row depends on the tokens alone; see `begin`."""

    @abstractmethod
    def _enter(self, way_in: WayIn, tokens_BNY: Tensor, hidden_BNH: Tensor) -> tuple[Tensor, Tensor]:
        """Query, key and value of rows, [B, N, X], and the residual stream beside them, float32 [B, N, H].

        `tokens_BNY` is the part of `way_in.tokens_BTY` that these rows are fed.
        """

    def begin(
        self, tokens_BT: Tensor, features_BFD: Tensor, rows_BQ: Tensor, opens_text_B: Tensor | None = None
    ) -> DraftChains:
        """Start a chain at every row; see `Draft.begin`."""
        rows = min(features_BFD.shape[1], tokens_BT.shape[1] - 1)
        positions_BR = torch.arange(rows, device=tokens_BT.device).expand(len(tokens_BT), rows)
        way_in = self._way_in(tokens_BT, opens_text_B)
        first_BRH = self._first_hidden(features_BFD[:, :rows])
        qkv_BRX, residual_BRH = self._enter(way_in, way_in.tokens_BTY[:, 1 : rows + 1], first_BRH)
        queries, keys, values = self._query_key_value(qkv_BRX, positions_BR)
        return DraftChains(
            rows_BQ=rows_BQ,
            hidden_BQH=rows_at(residual_BRH, rows_BQ),
            way_in=way_in,
            true_queries_BHRC=queries,
            true_keys_BKRC=keys,
            true_values_BKRC=values,
        )

    def advance(self, chains: DraftChains, fed_BQ: Tensor | None = None) -> Tensor:
        """Draft one step further on every chain; one that has run out of tokens is fed the window's last one.

        With `fed_BQ` every chain is fed that target id instead of the committed one; of use after step 0.
        """
        query_BHQC, residual_BQH = self._own_row(chains, fed_BQ) if chains.step else self._true_row(chains)
        attended_BQH = residual_BQH + self.midlayer.self_attn.o_proj(_attend(query_BHQC, chains))
        hidden_BQH = attended_BQH + self.midlayer.mlp(self.midlayer.post_attention_layernorm(attended_BQH))
        out_BQH: Tensor = self.norm(hidden_BQH)
        chains.hidden_BQH = out_BQH if self.config.norm_output else hidden_BQH
        chains.step += 1
        return out_BQH

    def _true_row(self, chains: DraftChains) -> tuple[Tensor, Tensor]:
        """Query and residual stream of step 0; query, key and value are those of the true-feature row."""
        return head_rows_at(chains.true_queries_BHRC, chains.rows_BQ), chains.hidden_BQH

    def _own_row(self, chains: DraftChains, fed_BQ: Tensor | None) -> tuple[Tensor, Tensor]:
        """Query and residual stream of a step fed its own hidden state; its key and value join the chain's."""
        positions_BQ = chains.rows_BQ + chains.step
        tokens_BTY = chains.way_in.tokens_BTY
        if fed_BQ is None:
            fed_BQY = rows_at(tokens_BTY, (positions_BQ + 1).clamp(max=tokens_BTY.shape[1] - 1))
        else:  # none of them opens a text
            fed_BQY = self._way_in(fed_BQ, torch.zeros(len(fed_BQ), dtype=torch.bool, device=fed_BQ.device)).tokens_BTY
        qkv_BQX, residual_BQH = self._enter(chains.way_in, fed_BQY, chains.hidden_BQH)
        query_BHQC, keys, values = self._query_key_value(qkv_BQX, positions_BQ)
        chains.own_keys_BKQC.append(keys)
        chains.own_values_BKQC.append(values)
        return query_BHQC, residual_BQH

    def _query_key_value(self, x_BNX: Tensor, positions_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split into heads, [B, heads, N, C] each; queries and keys are rotated by position."""
        heads = self.config.num_attention_heads
        kv_heads = self.config.num_key_value_heads
        by_head = x_BNX.view(*x_BNX.shape[:2], -1, self.config.head_dim).transpose(1, 2)
        rotated = self._rotated(by_head[:, : heads + kv_heads], positions_BN)
        return rotated[:, :heads], rotated[:, heads:], by_head[:, heads + kv_heads :]


def _attend(query_BHQC: Tensor, chains: DraftChains) -> Tensor:
    """One softmax over true-feature keys up to the row and the chain's own keys; [B, Q, heads * C]."""
    true_keys = chains.true_keys_BKRC
    true_values = chains.true_values_BKRC
    kv_heads, rows, width = true_keys.shape[1:]
    query_BKGQC = query_BHQC.reshape(len(query_BHQC), kv_heads, -1, *query_BHQC.shape[2:]) * width**-0.5
    is_later_BQR = torch.arange(rows, device=query_BHQC.device) > chains.rows_BQ[..., None]
    flat_BKXC = query_BKGQC.flatten(2, 3)
    scores = (flat_BKXC @ true_keys.mT).view(*query_BKGQC.shape[:4], rows)
    scores = scores.masked_fill(is_later_BQR[:, None, None], float("-inf"))
    own_scores = [(query_BKGQC * keys[:, :, None]).sum(-1, keepdim=True) for keys in chains.own_keys_BKQC]
    shares = torch.cat([scores, *own_scores], -1).softmax(-1)
    mixed: Tensor = (shares[..., :rows].flatten(2, 3) @ true_values).view(*query_BKGQC.shape[:-1], -1)
    for step, values in enumerate(chains.own_values_BKQC):
        mixed = mixed + shares[..., rows + step, None] * values[:, :, None]
    return mixed.flatten(1, 2).transpose(1, 2).flatten(2)
