"""What an objective is, and what a batch costs under it.

Axes as in losses.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .losses import onto_grid, position_weights, weighted_loss
from .names import Weighting

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Positions:
    """N scored positions: the draft's logits, and the target's labels. Ids are draft ids."""

    logits_NV: Tensor  # with gradient
    committed_N: Tensor  # -1 outside the draft's vocabulary
    ids_NK: Tensor
    probs_NK: Tensor  # each row sums to one; all on the committed token where there is no teacher
    rejection_N: Tensor  # bool, the trace was judged under `rejection`
    steps_N: Tensor  # int64, draft step

    @property
    def teacher(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draft and teacher, in the order the loss functions take them."""
        return self.logits_NV, self.ids_NK, self.probs_NK


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Labels:
    """What the target says at N positions; the fields are those of Positions, without the draft's logits."""

    committed_N: Tensor
    ids_NK: Tensor
    probs_NK: Tensor
    rejection_N: Tensor
    steps_N: Tensor

    def beside(self, logits_NV: Tensor, chunk: slice = slice(None)) -> Positions:
        """The positions of `chunk`, whose logits these are."""
        return Positions(
            logits_NV=logits_NV,
            committed_N=self.committed_N[chunk],
            ids_NK=self.ids_NK[chunk],
            probs_NK=self.probs_NK[chunk],
            rejection_N=self.rejection_N[chunk],
            steps_N=self.steps_N[chunk],
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Chains:
    """The same N positions on their grid; they are what `scored_BQS` marks in row-major order."""

    at: Positions
    scored_BQS: Tensor  # bool
    losses_BQS: Tensor  # of each position, with gradient; 0 at positions that are not scored
    log_accepts_BQS: Tensor  # -inf at positions that are not scored
    weights_BQS: Tensor  # of the weighting asked for, times that of the row, without gradient
    rounds: float  # all rows, each counted by its weight


def weighted_positions(chains: Chains) -> Tensor:
    """Mean over rounds of the losses of positions, weighted as asked for: the chain loss of most objectives."""
    return weighted_loss(chains.losses_BQS, chains.weights_BQS, chains.scored_BQS, chains.rounds)


#: Loss and log acceptance of every position, float[N] each. The log acceptance decides how much later steps weigh.
PositionLoss = Callable[[Positions], tuple[Tensor, Tensor]]
#: The scalar loss of a batch, a mean over rounds.
ChainLoss = Callable[[Chains], Tensor]


@dataclass(frozen=True, slots=True)
class ObjectiveSpec:
    """One objective: its loss, and what scoring a batch under it needs.

    A batch is scored in chunks of whole rows whose losses are added up: what is lost at a position depends on that
    position alone, and in a chain on its row alone.
    """

    position_loss: PositionLoss
    chain_loss: ChainLoss = weighted_positions
    needs_teacher: bool = True  # the target's top-K; else labels are the committed tokens


def chains_of(
    spec: ObjectiveSpec,
    at: Positions,
    scored_BQS: Tensor,
    *,
    rounds: float,
    weighting: Weighting,
    row_weights_BQ: Tensor | None = None,
) -> Chains:
    """Put losses, log acceptances and weights of the N positions on the grid that `scored_BQS` marks them in.

    `rounds` is the sum of all rows' weights; `row_weights_BQ` None: every row weighs 1.
    """
    losses_N, log_accepts_N = spec.position_loss(at)
    log_accepts_BQS = onto_grid(log_accepts_N, scored_BQS, _NEVER)
    weights_BQS = position_weights(log_accepts_BQS, weighting)
    return Chains(
        at=at,
        scored_BQS=scored_BQS,
        losses_BQS=onto_grid(losses_N, scored_BQS, 0.0),
        log_accepts_BQS=log_accepts_BQS,
        weights_BQS=weights_BQS if row_weights_BQ is None else weights_BQS * row_weights_BQ[..., None],
        rounds=rounds,
    )
