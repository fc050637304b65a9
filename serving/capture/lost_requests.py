"""Requests that lost a forward on the way to the courier, until the next message names them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..wire.counts import DropReason

#: Lost requests named in one message. Of the rest, those that also began meanwhile are counted and not named.
MAX_LOST = 4096
#: Of a name in a message, beside its characters, and of the reason.
NAME_BYTES = 5
REASON_BYTES = 12


class Step(NamedTuple):
    """What one forward is to a request."""

    request_id: str
    begins: bool
    ends: bool


@dataclass(slots=True)
class _Loss:
    reason: DropReason
    is_unseen: bool  # whether the courier was sent nothing of it
    has_ended: bool


class LostRequests:
    """Every lost request once: by name where the courier has a window of it or will get forwards, else by number.

    For one thread at a time.
    """

    def __init__(self) -> None:
        self.named: dict[str, _Loss] = {}
        self.unnamed: Counter[DropReason] = Counter()

    def __bool__(self) -> bool:
        return bool(self.named or self.unnamed)

    @property
    def size_bytes(self) -> int:
        """Of what is said of them in a message, at most."""
        named = self.named.items()
        return sum((1 + loss.has_ended) * (len(name) + NAME_BYTES) + REASON_BYTES for name, loss in named)

    def mark(self, steps: Iterable[Step], reason: DropReason) -> None:
        """Note a lost forward. Beyond MAX_LOST, requests that begin are counted; of others the courier finds a gap."""
        for step in steps:
            known = self.named.get(step.request_id)
            if step.begins and (step.ends or known is not None or len(self.named) >= MAX_LOST):
                self.unnamed[reason] += 1  # beside `known`, which had ended: the name is used again
            if known is not None:
                self._mark_again(step, known, reason)
            elif len(self.named) < MAX_LOST and not (step.begins and step.ends):
                self.named[step.request_id] = _Loss(reason, step.begins, step.ends)

    def message_fields(self) -> dict[str, Any]:
        """As a Message holds them."""
        return {
            "lost": {request_id: loss.reason for request_id, loss in self.named.items()},
            "ended": tuple(request_id for request_id, loss in self.named.items() if loss.has_ended),
            "lost_unnamed": dict(self.unnamed),
        }

    def clear(self) -> None:
        """The courier knows of all of them."""
        self.named.clear()
        self.unnamed.clear()

    def _mark_again(self, step: Step, loss: _Loss, reason: DropReason) -> None:
        loss.reason = reason if reason is DropReason.FAULT else loss.reason
        loss.has_ended = step.ends
        if loss.has_ended and loss.is_unseen:  # the courier has no window of it, and nothing follows
            del self.named[step.request_id]
            self.unnamed[loss.reason] += 1
