"""The objectives that production can train on, by name. A new one is a row here; see ObjectiveSpec.

Axes as in losses.py.
"""

from collections.abc import Mapping

from torch import Tensor

from .acceptance import matched_log_accepts, rejection_log_accepts, target_only_log_accepts
from .losses import committed_losses, soft_losses
from .names import Objective
from .spec import ObjectiveSpec, Positions


def committed(at: Positions) -> tuple[Tensor, Tensor]:
    """Cross-entropy to the committed tokens."""
    losses_N = committed_losses(at.logits_NV, at.committed_N)
    return losses_N, -losses_N.detach()


def soft(at: Positions) -> tuple[Tensor, Tensor]:
    """Cross-entropy to the teacher; the log acceptance is that under target_only."""
    return soft_losses(*at.teacher)


def matched(at: Positions) -> tuple[Tensor, Tensor]:
    """-log A under the rule of each position's trace."""
    return _negated(matched_log_accepts(*at.teacher, at.rejection_N))


def _negated(log_accepts_N: Tensor) -> tuple[Tensor, Tensor]:
    return -log_accepts_N, log_accepts_N


OBJECTIVES: Mapping[Objective, ObjectiveSpec] = {
    Objective.COMMITTED: ObjectiveSpec(committed, needs_teacher=False),
    Objective.SOFT: ObjectiveSpec(soft),
    Objective.TARGET_ONLY: ObjectiveSpec(lambda at: _negated(target_only_log_accepts(*at.teacher))),
    Objective.REJECTION: ObjectiveSpec(lambda at: _negated(rejection_log_accepts(*at.teacher))),
    Objective.MATCHED: ObjectiveSpec(matched),
}
