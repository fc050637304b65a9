"""Batches with the teacher that a baseline or an ablation asks for, where it is not the one requests were served with.

Axes as in learner/training/batch.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from ....buffer.trace import DraftTrace, Sampling
from ....learner.model.eagle3 import Eagle3Draft
from ....learner.training.batch import Batch, collate
from ....policies.objectives.losses import renormalised
from ....policies.objectives.spec import ObjectiveSpec

_UNTEMPERED = Sampling(temperature=1.0)


def labelled_batch(
    traces: Sequence[DraftTrace],
    draft: Eagle3Draft,
    spec: ObjectiveSpec,
    teacher_temperature: float = 1.0,
    *,
    with_context: bool = False,
) -> Batch:
    """`traces` on the draft's device with what `spec` asks for; a teacher is sharpened by `teacher_temperature`."""
    as_asked = partial(collate, device=draft.device, with_context=with_context)
    if not spec.needs_teacher:
        return as_asked(traces)
    if spec.as_served:
        return sharpened(as_asked(traces, soft=True), teacher_temperature)
    untempered = as_asked([replace(trace, sampling=_UNTEMPERED) for trace in traces], soft=True)
    return where_best_is_in_vocabulary(sharpened(untempered, teacher_temperature), draft)


def sharpened(batch: Batch, temperature: float) -> Batch:
    """The batch with `tempered_probs` of its teacher."""
    probs_BTK = batch.teacher_probs_BTK
    return batch if probs_BTK is None else replace(batch, teacher_probs_BTK=tempered_probs(probs_BTK, temperature))


def where_best_is_in_vocabulary(batch: Batch, draft: Eagle3Draft) -> Batch:
    """The batch without labels where the teacher's best token is outside the draft's vocabulary."""
    if batch.teacher_ids_BTK is None or batch.teacher_probs_BTK is None:
        return batch
    has_best_BT = draft.target_to_draft_W[batch.teacher_ids_BTK[..., 0]] >= 0
    return replace(batch, teacher_probs_BTK=batch.teacher_probs_BTK * has_best_BT[..., None])


def tempered_probs(probs_NK: Tensor, temperature: float) -> Tensor:
    """p^(1 / temperature), renormalised over the K entries, float[..., K]: below 1 sharper, at 1 `probs_NK` itself.

    Each row needs an entry above zero; `temperature` is above 0.
    """
    if temperature == 1.0:
        return probs_NK
    # Against the row's best entry: the power of a flat row could vanish altogether.
    best_NK = probs_NK.amax(-1, keepdim=True)
    return renormalised((probs_NK / best_NK) ** (1.0 / temperature))
