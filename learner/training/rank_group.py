"""Several processes that fit one draft together: each finds the gradient of its share of every batch.

Rank 0 learns as a learner without others does. The other ranks follow it: for every fit they are sent its traces and
the weights, and where they lack it the trainer's whole state, and then they fit the same. Batches are drawn from the
same random numbers, gradients are summed over the ranks, and so every rank takes the same steps. What fails on one rank
ends the group, and with it the learning round; torchrun starts all of them again.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, BinaryIO, Final, Protocol

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...buffer.stream.trace import DraftTrace
from ...buffer.stream.trace_codec import decode_trace, encode_trace
from .plan import TrainingPlan

#: A rank that has died is noticed at once by gloo, and after this by NCCL.
_STEP_LIMIT: Final = timedelta(minutes=10)
#: Followers wait from one learning round to the next.
_PATIENCE: Final = timedelta(days=365)
#: More at once than this does not fit into a message of every backend.
_CHUNK_BYTES: Final = 1 << 30


class Fit(msgspec.Struct, kw_only=True):
    """One fit, as rank 0 tells it."""

    plan: TrainingPlan
    target_versions: tuple[str, ...]
    part_tokens: int | None
    fresh: list[bytes]  # encoded traces
    replay: list[bytes]
    has_state: bool  # the trainer's state follows


class Fitted(Protocol):
    """What is needed of a DraftTrainer."""

    plan: TrainingPlan
    target_versions: tuple[str, ...]

    @property
    def draft(self) -> nn.Module:
        """Its weights, changed in place."""
        ...

    def save(self, path: BinaryIO) -> None:
        """As DraftTrainer.save."""
        ...

    def load(self, path: BinaryIO) -> None:
        """As DraftTrainer.load."""
        ...

    def fit(self, fresh: Sequence[DraftTrace], replay: Sequence[DraftTrace], part_tokens: int | None = None) -> Any:
        """As DraftTrainer.fit."""
        ...


class RankGroup:
    """This process among the ranks. One thread; a call is a meeting of all ranks, and blocks until all have come."""

    def __init__(self, device: torch.device) -> None:
        """Meet the others as torchrun's environment says; blocks until all are there."""
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_STEP_LIMIT)
        self._control = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._device = device
        self._followed: Fitted | None = None  # rank 0's, whose state the others have
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    def share(self, traces: Sequence[DraftTrace]) -> Sequence[DraftTrace]:
        """This rank's part of `traces`; together the ranks have each once."""
        return traces[self.rank :: self.world]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace every tensor by its sum over the ranks, the same bits on all of them."""
        for tensor in tensors:
            dist.all_reduce(tensor)

    def exchange(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensor number i, contiguous and on every rank, by what rank i has."""
        for owner, tensor in enumerate(tensors):
            dist.broadcast(tensor, owner)

    def totals(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over the ranks."""
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed, group=self._control)
        return [float(value) for value in summed]

    @contextmanager
    def fitting(
        self,
        trainer: Fitted,
        fresh: Sequence[DraftTrace],
        replay: Sequence[DraftTrace],
        part_tokens: int | None,
    ) -> Iterator[None]:
        """Around one fit of every rank: rank 0 tells the others of it. An exception in the body ends the group."""
        try:
            if self.rank == 0:
                self._tell(trainer, fresh, replay, part_tokens)
            for weight in trainer.draft.parameters():
                dist.broadcast(weight.data, 0)
            yield
        except BaseException:  # an interrupt too: the others wait in the middle of a fit that this rank has left
            self.leave()
            raise
        self._followed = trainer

    def follow(self, make_trainer: Callable[[Fit], Fitted]) -> None:
        """Take part in every fit of rank 0 until it ends; `make_trainer` makes what its state can be read into."""
        trainer: Fitted | None = None
        while raw := self._broadcast_bytes(b""):
            fit = msgspec.msgpack.decode(raw, type=Fit)
            if fit.has_state or trainer is None:
                trainer = make_trainer(fit)
                trainer.load(io.BytesIO(self._broadcast_bytes(b"")))
            trainer.plan = fit.plan
            trainer.target_versions = fit.target_versions
            trainer.fit([*map(decode_trace, fit.fresh)], [*map(decode_trace, fit.replay)], fit.part_tokens)

    def end(self) -> None:
        """Rank 0: let the others go, and leave."""
        if self.rank == 0 and dist.is_initialized():
            self._broadcast_bytes(b"")
        self.leave()

    def leave(self) -> None:
        """Cut this rank off: the others' next meeting fails."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _tell(
        self,
        trainer: Fitted,
        fresh: Sequence[DraftTrace],
        replay: Sequence[DraftTrace],
        part_tokens: int | None,
    ) -> None:
        has_state = self._followed is not trainer
        fit = Fit(
            plan=trainer.plan,
            target_versions=tuple(trainer.target_versions),
            part_tokens=part_tokens,
            fresh=[*map(encode_trace, fresh)],
            replay=[*map(encode_trace, replay)],
            has_state=has_state,
        )
        self._broadcast_bytes(msgspec.msgpack.encode(fit))
        if has_state:
            state = io.BytesIO()
            trainer.save(state)
            self._broadcast_bytes(state.getvalue())

    def _broadcast_bytes(self, raw: bytes) -> bytes:
        """What rank 0 passes, on every rank; empty where it has nothing more to say."""
        size = torch.tensor([len(raw)])
        dist.broadcast(size, 0, group=self._control)
        whole = (
            torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(int(size), dtype=torch.uint8)
        )
        for chunk in torch.split(whole, _CHUNK_BYTES):
            dist.broadcast(chunk, 0, group=self._control)
        return whole.numpy().tobytes()


_joined: RankGroup | None = None


def joined() -> RankGroup | None:
    """The group that this process is in; None where it learns alone."""
    return _joined


@contextmanager
def joining(device: torch.device) -> Iterator[RankGroup]:
    """Be one of torchrun's ranks: every fit within the body is one of all of them."""
    global _joined  # noqa: PLW0603 - torch's own group is the process's too
    _joined = RankGroup(device)
    try:
        yield _joined
    finally:
        _joined.end()
        _joined = None
