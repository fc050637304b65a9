"""A draft of one decoder layer that drafts chains, fed its own hidden states: EAGLE-3, and the MTP layer of a target.

Axes: B traces, T tokens, R feature rows that can draft (min(F, T - 1)), Q rows drafted from, N rows of any kind,
D feature width, H hidden size (before C: heads), K key-value heads, G query heads per key-value head, C channels
of a head, X query, key and value side by side, Y what a kind of draft makes of a token alone, W target vocabulary,
V draft vocabulary.

Row p takes the embedding of token p + 1 and the target's feature at position p, and its step 0 predicts token
p + 2; step k takes its own hidden output of step k - 1 with token p + 1 + k at rope position p + k, and predicts
token p + 2 + k. A step attends the keys of true features up to row p, then the keys of its own earlier steps.
So a round rooted at token s is row s - 1. Positions count from the window's first token: rope knows distances only.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ...buffer.errors import ConfigError
from .decoder_layer import DecoderLayer, Midlayer
from .draft_config import DraftConfig
from .logits import positions_per_chunk

__all__ = ["ChainDraft", "DraftChains", "WayIn"]


@dataclass(frozen=True, slots=True)
class WayIn:
    """What every step makes its row of, beside the hidden state that it is fed."""

    tokens_BTY: Tensor  # of every token: linear in its embedding, and so the same at every step
    weights: tuple[Tensor, ...]  # put together once for all steps


@dataclass(slots=True, kw_only=True)
class DraftChains:
    """Draft chains in the making, one per row of `rows_BQ`: what the next step needs of those before it."""

    rows_BQ: Tensor
    hidden_BQH: Tensor  # what the next step is fed; of step 0, its residual stream
    way_in: WayIn
    true_queries_BHRC: Tensor
    true_keys_BKRC: Tensor
    true_values_BKRC: Tensor
    own_keys_BKQC: list[Tensor] = field(default_factory=list)
    own_values_BKQC: list[Tensor] = field(default_factory=list)
    step: int = 0

    def predicted(self) -> Tensor:
        """Position of the token that the next step predicts, int64[B, Q]; may be past the trace window."""
        return self.rows_BQ + 2 + self.step

    def keep(self, index_BP: Tensor) -> None:
        """Go on with these chains only (indices into Q, repeats allowed)."""
        self.rows_BQ = self.rows_BQ.gather(1, index_BP)
        self.hidden_BQH = _rows(self.hidden_BQH, index_BP)
        self.own_keys_BKQC = [_head_rows(keys, index_BP) for keys in self.own_keys_BKQC]
        self.own_values_BKQC = [_head_rows(values, index_BP) for values in self.own_values_BKQC]


class ChainDraft(nn.Module, ABC):
    """What every kind of draft does alike. Embedding and maps are not learned."""

    config: DraftConfig
    midlayer: DecoderLayer | Midlayer
    norm: nn.RMSNorm
    lm_head: nn.Linear
    embedding_WH: Tensor
    radians_C: Tensor  # turn of every channel pair per position
    draft_to_target_V: Tensor
    target_to_draft_W: Tensor
    has_vocabulary_map: bool
    #: Tensor names and dtypes of the file this draft was loaded from; empty when it came from none.
    file_dtypes: dict[str, torch.dtype]

    @abstractmethod
    def parameter_of(self, name: str) -> str:
        """Name of the parameter that a weights file calls `name`; `name` itself of one that is unknown."""

    def file_tensors(self) -> dict[str, Tensor]:
        """All that a weights file holds beside the vocabulary map, as `parameter_of` names it: the weights themselves.

        Of several matrices in one parameter each is a view.
        """
        return dict(self.named_parameters())

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

    def _share(self, embedding: Tensor, draft_to_target: Tensor | None, target_head: Tensor | None) -> None:
        """Take from the target what is the target's: to be called once, after all parameters but the head are made.

        `draft_to_target` may be left out when the vocabularies are the same. ConfigError when shapes do not fit.
        """
        config = self.config
        self.file_dtypes = {}
        self.has_vocabulary_map = draft_to_target is not None
        self.lm_head = _shared_head(config, target_head) if config.shares_head else _own_head(config)
        ids_V = torch.arange(config.draft_vocab_size) if draft_to_target is None else draft_to_target.long()
        _check_vocabulary(config, embedding, ids_V, identity=draft_to_target is None)
        to_draft_W = torch.full((config.vocab_size,), -1)
        to_draft_W[ids_V] = torch.arange(len(ids_V))
        self.register_buffer("embedding_WH", embedding.detach().float(), persistent=False)
        self.register_buffer("radians_C", config.rope.radians(config.rotary_dim // 2), persistent=False)
        self.register_buffer("draft_to_target_V", ids_V, persistent=False)
        self.register_buffer("target_to_draft_W", to_draft_W, persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and where inputs must be."""
        return self.norm.weight.device

    def begin(
        self, tokens_BT: Tensor, features_BFD: Tensor, rows_BQ: Tensor, opens_text_B: Tensor | None = None
    ) -> DraftChains:
        """Start a chain at every row of `rows_BQ` (each below min(F, T - 1)).

        Tokens are target ids; padding may hold any valid id and any finite feature: no row sees a later one.
        `opens_text_B` says which windows begin with the first token of their text, bool; all of them without it.
        """
        rows = min(features_BFD.shape[1], tokens_BT.shape[1] - 1)
        positions_BR = torch.arange(rows, device=tokens_BT.device).expand(len(tokens_BT), rows)
        way_in = self._way_in(tokens_BT, opens_text_B)
        first_BRH = self._first_hidden(features_BFD[:, :rows])
        qkv_BRX, residual_BRH = self._enter(way_in, way_in.tokens_BTY[:, 1 : rows + 1], first_BRH)
        queries, keys, values = self._query_key_value(qkv_BRX, positions_BR)
        return DraftChains(
            rows_BQ=rows_BQ,
            hidden_BQH=_rows(residual_BRH, rows_BQ),
            way_in=way_in,
            true_queries_BHRC=queries,
            true_keys_BKRC=keys,
            true_values_BKRC=values,
        )

    def advance(self, chains: DraftChains) -> Tensor:
        """Draft one step further on every chain, fed the committed token; return [B, Q, H], ready for `lm_head`.

        A chain that has run out of tokens is fed the window's last one: its output means nothing from there on.
        """
        query_BHQC, residual_BQH = self._own_row(chains) if chains.step else self._true_row(chains)
        attended_BQH = residual_BQH + self.midlayer.self_attn.o_proj(_attend(query_BHQC, chains))
        hidden_BQH = attended_BQH + self.midlayer.mlp(self.midlayer.post_attention_layernorm(attended_BQH))
        out_BQH: Tensor = self.norm(hidden_BQH)
        chains.hidden_BQH = out_BQH if self.config.norm_output else hidden_BQH
        chains.step += 1
        return out_BQH

    def unroll(self, tokens_BT: Tensor, features_BFD: Tensor, steps: int) -> list[Tensor]:
        """Logits of every step at every row, float32 [B, R, draft vocabulary] each, R = min(F, T - 1)."""
        rows = min(features_BFD.shape[1], tokens_BT.shape[1] - 1)
        rows_BR = torch.arange(rows, device=tokens_BT.device).expand(len(tokens_BT), rows)
        chains = self.begin(tokens_BT, features_BFD, rows_BR)
        return [self.lm_head(self.advance(chains)).float() for _ in range(steps)]

    def best_tokens(self, hidden_NH: Tensor) -> Tensor:
        """Target ids of the most likely draft tokens, int64[N]; logits live for a chunk of `hidden_NH` at a time."""
        chunks = torch.split(hidden_NH, positions_per_chunk(self.config.draft_vocab_size))
        return self.draft_to_target_V[torch.cat([self.lm_head(chunk_NH).argmax(-1) for chunk_NH in chunks])]

    def _true_row(self, chains: DraftChains) -> tuple[Tensor, Tensor]:
        """Query and residual stream of step 0; query, key and value are those of the true-feature row."""
        return _head_rows(chains.true_queries_BHRC, chains.rows_BQ), chains.hidden_BQH

    def _own_row(self, chains: DraftChains) -> tuple[Tensor, Tensor]:
        """Query and residual stream of a step fed its own hidden state; its key and value join the chain's."""
        positions_BQ = chains.rows_BQ + chains.step
        tokens_BTY = chains.way_in.tokens_BTY
        fed_BQ = (positions_BQ + 1).clamp(max=tokens_BTY.shape[1] - 1)
        qkv_BQX, residual_BQH = self._enter(chains.way_in, _rows(tokens_BTY, fed_BQ), chains.hidden_BQH)
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

    def _rotated(self, x_BHNC: Tensor, positions_BN: Tensor) -> Tensor:
        half = self.config.rotary_dim // 2
        magnitude = self.config.rope.magnitude
        angles_BNC = positions_BN[..., None] * self.radians_C
        cos = angles_BNC.cos()[:, None] * magnitude
        sin = angles_BNC.sin()[:, None] * magnitude
        left, right, rest = x_BHNC.float().tensor_split((half, 2 * half), -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin, rest], -1)


def _own_head(config: DraftConfig) -> nn.Linear:
    return nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)


def _shared_head(config: DraftConfig, target_head: Tensor | None) -> nn.Linear:
    """A head whose weight is no parameter: it is neither learned nor saved."""
    got = None if target_head is None else tuple(target_head.shape)
    expected = (config.vocab_size, config.hidden_size)
    if target_head is None or got != expected:
        raise ConfigError(f"target head: got {got}, expected {expected}, since draft_vocab_size is null in the config")
    head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta")
    del head.weight
    head.register_buffer("weight", target_head.detach().float(), persistent=False)
    return head


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


def _rows(x_BNH: Tensor, index_BP: Tensor) -> Tensor:
    # Whole rows at once: a gather over an index expanded to every channel walks them one number at a time.
    first_B1 = torch.arange(len(x_BNH), device=x_BNH.device)[:, None] * x_BNH.shape[1]
    return x_BNH.flatten(0, 1).index_select(0, (first_B1 + index_BP).flatten()).view(*index_BP.shape, x_BNH.shape[2])


def _head_rows(x_BHNC: Tensor, index_BP: Tensor) -> Tensor:
    rows_BPX = _rows(x_BHNC.transpose(1, 2).flatten(2), index_BP)
    return rows_BPX.view(*index_BP.shape, x_BHNC.shape[1], x_BHNC.shape[3]).transpose(1, 2)


def _check_vocabulary(config: DraftConfig, embedding: Tensor, ids_V: Tensor, *, identity: bool) -> None:
    shape = (config.vocab_size, config.hidden_size)
    if tuple(embedding.shape) != shape:
        raise ConfigError(f"target embedding: got {tuple(embedding.shape)}, expected {shape} from the draft's config")
    if identity and config.draft_vocab_size != config.vocab_size:
        raise ConfigError(f"d2t: missing, expected {config.draft_vocab_size} entries for {config.vocab_size} tokens")
    if ids_V.shape != (config.draft_vocab_size,) or len(torch.unique(ids_V)) != len(ids_V):
        raise ConfigError(f"d2t: got {len(ids_V)} entries, expected {config.draft_vocab_size} different ones")
    if config.shares_head and not torch.equal(ids_V, torch.arange(len(ids_V))):
        raise ConfigError(
            "d2t: got other ids than the target's, expected the same, since draft and target share a head"
        )
    if int(ids_V.min()) < 0 or int(ids_V.max()) >= config.vocab_size:
        raise ConfigError(
            f"d2t: got target ids {int(ids_V.min())}..{int(ids_V.max())}, expected 0..{config.vocab_size - 1}"
        )
