"""What every kind of draft is to those that replay and train it: a module that drafts verify rounds on recorded text.

Axes: B traces, T tokens, F feature rows, R feature rows that can draft (min(F, T - 1)), Q rows drafted from, N rows of
any kind, D feature width, H hidden size (before C: heads), C channels of a head, W target vocabulary, V draft
vocabulary.

A round rooted at token s is drafted from row s - 1: it has the target's features up to there, and its draft k is of the
token at s + 1 + k, row + 2 + k. Positions count from the window's first token: rope knows distances only.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...buffer.errors import ConfigError
from .draft_config import DraftConfig
from .logits import positions_per_chunk


@dataclass(slots=True, kw_only=True)
class DraftRounds(ABC):
    """Verify rounds in the making, one per row of `rows_BQ`."""

    rows_BQ: Tensor
    step: int = 0

    def predicted(self) -> Tensor:
        """Position of the token that the next step predicts, int64[B, Q]; may be past the trace window."""
        return self.rows_BQ + 2 + self.step

    @abstractmethod
    def keep(self, index_BP: Tensor) -> None:
        """Go on with these rounds only (indices into Q, repeats allowed)."""


class Draft(nn.Module, ABC):
    """What every kind of draft does alike. Embedding and maps are not learned."""

    config: DraftConfig
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
    def begin(
        self, tokens_BT: Tensor, features_BFD: Tensor, rows_BQ: Tensor, opens_text_B: Tensor | None = None
    ) -> DraftRounds:
        """Start a round at every row of `rows_BQ` (each below min(F, T - 1)).

        Tokens are target ids; padding may hold any valid id and any finite feature: no row sees a later one.
        `opens_text_B` says which windows begin with the first token of their text, bool; all of them without it.
        """

    @abstractmethod
    def advance(self, rounds: Any) -> Tensor:
        """Draft one step further in every round that `begin` returned; return [B, Q, H], ready for `lm_head`.

        Where the drafts before are fed in, they are the committed tokens; of a round that has run out of these the
        output means nothing from there on.
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

    def unroll(self, tokens_BT: Tensor, features_BFD: Tensor, steps: int) -> list[Tensor]:
        """Logits of every step at every row, float32 [B, R, draft vocabulary] each, R = min(F, T - 1)."""
        rows = min(features_BFD.shape[1], tokens_BT.shape[1] - 1)
        rows_BR = torch.arange(rows, device=tokens_BT.device).expand(len(tokens_BT), rows)
        chains = self.begin(tokens_BT, features_BFD, rows_BR)
        return [self.lm_head(self.advance(chains)).float() for _ in range(steps)]

    def likeliest(self, hidden_NH: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` most likely draft tokens: their probability, falling, and their target ids, [N, count] each."""
        chunks = torch.split(hidden_NH, positions_per_chunk(self.config.draft_vocab_size))
        found = [self.lm_head(chunk_NH).float().softmax(-1).topk(count) for chunk_NH in chunks]
        return torch.cat([each.values for each in found]), self.draft_to_target_V[torch.cat([e.indices for e in found])]

    def best_tokens(self, hidden_NH: Tensor) -> Tensor:
        """Target ids of the most likely draft tokens, int64[N]; logits live for a chunk of `hidden_NH` at a time."""
        chunks = torch.split(hidden_NH, positions_per_chunk(self.config.draft_vocab_size))
        return self.draft_to_target_V[torch.cat([self.lm_head(chunk_NH).argmax(-1) for chunk_NH in chunks])]

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
        raise ConfigError(f"target head: got {got}, expected {expected}, since the draft has none of its own")
    head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta")
    del head.weight
    head.register_buffer("weight", target_head.detach().float(), persistent=False)
    return head


def rows_at(x_BNH: Tensor, index_BP: Tensor) -> Tensor:
    """Rows of each trace by index, [B, P, H]."""
    # Whole rows at once: a gather over an index expanded to every channel walks them one number at a time.
    first_B1 = torch.arange(len(x_BNH), device=x_BNH.device)[:, None] * x_BNH.shape[1]
    return x_BNH.flatten(0, 1).index_select(0, (first_B1 + index_BP).flatten()).view(*index_BP.shape, x_BNH.shape[2])


def head_rows_at(x_BHNC: Tensor, index_BP: Tensor) -> Tensor:
    """The same for heads side by side, [B, heads, P, C]."""
    rows_BPX = rows_at(x_BHNC.transpose(1, 2).flatten(2), index_BP)
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
