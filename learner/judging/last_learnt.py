"""Which requests and prompts the line of drafts learnt in the claim before: further traces of them do not judge."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...buffer.trace import DraftTrace
from ...policies.paired import Asked


class LastLearnt:
    """Remembers one claim: what is asked about is the one before, what is noted the one at hand.

    A claim can be larger than the replay buffer, which therefore does not tell all requests. A prompt is not noted in
    the claim after the one that noted it: else one that is asked all the time would judge once and never again.
    """

    def __init__(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Goes on from the `state` of the claim before; an empty one remembers nothing."""
        self.requests: frozenset[str] = frozenset(state.get("requests", ()))
        self._prompts = frozenset(Asked(*asked) for asked in state.get("prompts", ()))
        self._noted_requests: set[str] = set()
        self._noted_prompts: set[Asked] = set()

    def has_prompt_of(self, trace: DraftTrace) -> bool:
        """Whether the claim before noted an answer to the same tenant's prompt; of an unknown prompt none is."""
        return Asked(trace.tenant, trace.prompt) in self._prompts

    def note(self, block: Iterable[DraftTrace]) -> None:
        """The line is about to learn these, or holds them out."""
        for trace in block:
            self._noted_requests.add(trace.request_id)
            if trace.prompt and not self.has_prompt_of(trace):
                self._noted_prompts.add(Asked(trace.tenant, trace.prompt))

    def state(self) -> Mapping[str, Sequence[Any]]:
        """What the next claim needs, as JSON values; that of the claim before, where nothing was learnt in this one."""
        is_noted = bool(self._noted_requests)
        requests, prompts = (self._noted_requests, self._noted_prompts) if is_noted else (self.requests, self._prompts)
        return {"requests": sorted(requests), "prompts": sorted(prompts)}
