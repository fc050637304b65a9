"""What an objective is, and what a batch costs under it.

Axes as in losses.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .losses import mean_acceptance, onto_grid, position_weights, weighted_loss
from .names import Weighting

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """N scored positions: the draft's logits, and the target's labels. Ids are draft ids."""

    logits_NV: Tensor  # with gradient
    committed_N: Tensor  # -1 outside the draft's vocabulary
    ids_NK: Tensor
    probs_NK: Tensor  # each row sums to one; all on the committed token where there is no teacher
    rejection_N: Tensor  # bool, the trace was judged under `rejection`
    steps_N: Tensor  # int64, draft step
    reference_NV: Tensor | None = None  # logits of a frozen draft, for objectives that compare with one

    @property
    def teacher(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draft and teacher, in the order the loss functions take them."""
        return self.logits_NV, self.ids_NK, self.probs_NK

    @property
    def reference(self) -> Tensor:
        """The frozen draft's logits. ValueError without one."""
        if self.reference_NV is None:
            raise ValueError("reference logits: got none, expected those of a frozen draft; pass a reference")
        return self.reference_NV


@dataclass(frozen=True, slots=True, eq=False)
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
            logits_NV,
            self.committed_N[chunk],
            self.ids_NK[chunk],
            self.probs_NK[chunk],
            self.rejection_N[chunk],
            self.steps_N[chunk],
        )


@dataclass(frozen=True, slots=True, eq=False)
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

    Production reads `position_loss`, `chain_loss` and `needs_teacher`; the other needs are met by the learning bench
    alone, so an objective that has one of them is a baseline. Production also scores a batch in chunks of whole rows
    and adds up their losses, so its objectives lose at a position what depends on that position alone, and in a chain
    what depends on its row alone.
    """

    position_loss: PositionLoss
    chain_loss: ChainLoss = weighted_positions
    needs_teacher: bool = True  # the target's top-K; else labels are the committed tokens
    needs_reference: bool = False  # a frozen draft to compare with
    needs_verdicts: bool = False  # what served rounds proposed; it scores those instead of committed text
    needs_served_rounds: bool = False  # the teacher on drafted chains, scored beside the committed text
    as_served: bool = True  # the teacher at the request's own sampling; else at temperature 1

    @property
    def weighs_rows(self) -> bool:
        """Whether rows may count differently: those of the context then count less than those with a verdict."""
        return self.chain_loss is weighted_positions and not self.needs_verdicts


@dataclass(frozen=True, slots=True, eq=False)
class GridLoss:
    """What a batch costs; only `loss` has gradient."""

    loss: Tensor  # scalar, mean over rounds
    acceptance_S: Tensor  # mean A by draft step


def grid_loss(
    spec: ObjectiveSpec,
    at: Positions,
    scored_BQS: Tensor,
    inside_BQS: Tensor,
    *,
    rounds: float,
    weighting: Weighting,
    row_weights_BQ: Tensor | None = None,
) -> GridLoss:
    """Loss of the N positions that `scored_BQS` marks in row-major order; acceptance is that over `inside_BQS`.

    A chain loss of its own may leave weights aside. ValueError when the objective needs reference logits and
    `at` has none.
    """
    chains = chains_of(spec, at, scored_BQS, rounds=rounds, weighting=weighting, row_weights_BQ=row_weights_BQ)
    return GridLoss(spec.chain_loss(chains), mean_acceptance(chains.log_accepts_BQS, inside_BQS))


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
        at,
        scored_BQS,
        onto_grid(losses_N, scored_BQS, 0.0),
        log_accepts_BQS,
        weights_BQS if row_weights_BQ is None else weights_BQS * row_weights_BQ[..., None],
        rounds,
    )
