"""What the ranks of one server decide together; in their scheduler processes only.

Servers of `--dp-size` are several: each has ranks of its own. Ranks of data-parallel attention are one.
"""

import logging

import torch

log = logging.getLogger(__name__)


def count() -> int:
    """Tensor-parallel ranks of this server, by SGLang's resolved settings."""
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().tp_size)


def is_asked_for_all() -> bool:
    """Whether a command that this entry rank takes in reaches every rank.

    With data-parallel attention every group of ranks has an entry rank, and SGLang broadcasts the first one's commands.
    """
    from sglang.srt.runtime_context import get_parallel

    return not get_parallel().attn_dp_rank


def least(value: int) -> int:
    """The smallest `value` of all ranks. Blocks until every rank has called it."""
    from sglang.srt.runtime_context import get_parallel

    smallest = torch.tensor([value])
    group = get_parallel().tp_group.cpu_group
    torch.distributed.all_reduce(smallest, torch.distributed.ReduceOp.MIN, group=group)
    return int(smallest.item())


def is_same_on_all(value: int) -> bool:
    """Whether every rank has called this with one and the same value; blocks like `least`."""
    smallest = least(value)
    negated_largest = least(-value)
    return smallest == -negated_largest


def fault_of_any(own: str, elsewhere: str) -> str:
    """`own`, a rank's fault or nothing; `elsewhere` when only other ranks have one; nothing when none has.

    Blocks like `least`. Ranks that cannot ask each other have a fault: what is raised is logged and returned.
    """
    try:
        is_any = not least(int(not own))
    except Exception as unasked:  # torch and its backends raise many types; none may reach SGLang's scheduler
        log.exception("paceline: the ranks cannot agree")
        return own or f"{type(unasked).__name__}: {unasked}"
    return own or (elsewhere if is_any else "")
