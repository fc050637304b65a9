"""How much of a batch goes through the device at once: as many tokens as a bound allows, fewer once they do not fit.

Tokens are counted as the device holds them: every trace of a part as long as its longest.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from ...buffer.errors import DeviceOutOfMemory
from ...buffer.stream.trace import DraftTrace
from ..config import LearnerConfig

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

#: What torch says, in a plain RuntimeError, when the host refuses it memory.
_HOST_REFUSED = "DefaultCPUAllocator: "


def is_out_of_memory(failure: BaseException) -> bool:
    """Return whether torch could not allocate, on whatever device."""
    is_refused = isinstance(failure, RuntimeError) and _HOST_REFUSED in str(failure)
    return is_refused or isinstance(failure, torch.OutOfMemoryError)


def padded_tokens(traces: Sequence[DraftTrace]) -> int:
    """Tokens of `traces` in one tensor."""
    return len(traces) * max(len(trace.tokens) for trace in traces)


def parts_within(traces: Sequence[DraftTrace], tokens: int, most_traces: int) -> list[list[DraftTrace]]:
    """`traces` in order, in parts of at most `tokens` and `most_traces`; a longer trace is a part of its own."""
    parts: list[list[DraftTrace]] = []
    for trace in traces:
        if parts and len(parts[-1]) < most_traces and padded_tokens([*parts[-1], trace]) <= tokens:
            parts[-1].append(trace)
        else:
            parts.append([trace])
    return parts


class PartBound:
    """Bound on the tokens of a part. It is lowered when a part does not fit, and not raised again."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def map(
        self,
        work: Callable[[Sequence[DraftTrace]], _T],
        traces: Sequence[DraftTrace],
        *,
        restart: Callable[[], object],
        most_traces: int,
    ) -> list[_T]:
        """Return what `work` returns for every part of `traces`, after a call of `restart`.

        When a part does not fit into the device's memory, all is done again, from `restart` on, in parts of at most
        half its tokens: what `work` changed by then may be half a change. Raises what torch raised, with a note of the
        size, when a trace alone does not fit.
        """
        while True:
            restart()
            done = self._attempt(work, parts_within(traces, self.tokens, most_traces))
            if done is not None:
                return done
            # Outside of the handler: the failure, and with it the tensors of its frames, are gone by now.
            torch.cuda.empty_cache()

    def _attempt(
        self, work: Callable[[Sequence[DraftTrace]], _T], parts: Sequence[Sequence[DraftTrace]]
    ) -> list[_T] | None:
        done: list[_T] = []
        for part in parts:
            try:
                done.append(work(part))
            except RuntimeError as failure:
                if not is_out_of_memory(failure):
                    raise
                if len(part) == 1:
                    failure.add_note(f"one trace of {padded_tokens(part)} tokens does not fit")
                    raise
                self._lower(part, failure)
                return None
        return done

    def _lower(self, part: Sequence[DraftTrace], failure: BaseException) -> None:
        size = padded_tokens(part)
        self.tokens = size // 2
        said = "%d traces, padded to %d tokens, do not fit into the device's memory; on in parts of at most %d (%s)"
        _log.warning(said, len(part), size, self.tokens, str(failure).partition("\n")[0])


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device has instructions that multiply in bfloat16; without them it would only be slower."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - no public name


@contextmanager
def memory_errors_named(config: LearnerConfig) -> Iterator[None]:
    """Turn what torch raises when it cannot allocate into DeviceOutOfMemory, which names the settings."""
    try:
        yield
    except RuntimeError as failure:
        if not is_out_of_memory(failure):
            raise
        said = "; ".join([*getattr(failure, "__notes__", []), str(failure).partition("\n")[0]])
        raise DeviceOutOfMemory(
            f"device {config.device}: out of memory ({said}); the traces stay pending. Lower PACELINE_BATCH_TOKENS, "
            f"now {config.batch_tokens}{_recomputing(config)}; where one trace alone does not fit, lower "
            "PACELINE_DRAFT_STEPS or, on the servers, PACELINE_TRACE_TOKENS, or give the learner a device with more "
            "memory"
        ) from failure


def _recomputing(config: LearnerConfig) -> str:
    now = config.recompute_tokens
    return f", and PACELINE_RECOMPUTE_TOKENS, now {now}: the device holds the target too" if now else ""
