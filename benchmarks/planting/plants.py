"""The causes that are planted: how each is switched off and on, and what `explain` should call it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...buffer.version import VersionState
from ...policies.readings.causes.parts import Cause
from ...rig.prompts import Prompt
from ..measure.measured_server import BY, MeasuredServer, wait_until
from .traffic import Traffic

#: Versions on the board: the server starts with random weights, and the learnt draft takes their place at once.
RANDOM, LEARNT = 0, 1
#: Prompts, and output tokens, of the batch that grows.
FEW, LONG = 8, 160
#: A learning round beside the traffic, on two cores.
ROUND_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Plant:
    """One cause. `switch` is called with whether it is on, before the traffic of a phase."""

    name: str
    cause: Cause
    off: Traffic
    on: Traffic
    switch: Callable[[bool], None] = field(default=lambda _: None)


def plants(
    server: MeasuredServer, prompts: Mapping[str, Sequence[Prompt]], known: str, unknown: str, learner: "Learning"
) -> list[Plant]:
    """All of them; `known` and `unknown` are domains, of which the learnt draft knows the first alone."""
    usual, other = Traffic(prompts[known], known), Traffic(prompts[unknown], unknown)
    # Long answers, or else prefill of eight times the requests takes its share as well; and few prompts, or else one
    # request at a time never gets to those that eight at a time get to.
    longer = replace(usual, prompts=usual.prompts[:FEW], max_tokens=LONG)
    return [
        # First, while few traces wait: a round learns all of them, and is waited for.
        Plant("learner on the same cores", Cause.LEARNER, usual, usual, learner.switch),
        Plant("shifted mix of labels", Cause.LABELS, usual, other),
        Plant("stale draft: traffic moves under one label", Cause.STALE, _unlabelled(usual), _unlabelled(other)),
        Plant("temperature 1", Cause.SAMPLING, usual, replace(usual, temperature=1.0)),
        Plant("batch of 8, not of 1", Cause.BATCH, replace(longer, concurrency=1), replace(longer, concurrency=8)),
        Plant("silent death: random weights", Cause.DRAFT, usual, usual, lambda is_on: _die(server, is_on=is_on)),
    ]


def _unlabelled(traffic: Traffic) -> Traffic:
    """Under the one label that all traffic has."""
    return replace(traffic, label="all")


class Learning:
    """A learner that learns while it is asked to, and else waits. No draft of its own drafts in a phase."""

    def __init__(self, server: MeasuredServer) -> None:
        self._server = server

    def switch(self, is_on: bool) -> None:
        """Ask for a learning round, longer than a phase, and wait until it runs; or wait until none does, and take away
        what it brought.
        """
        if is_on:
            self._server.buffer.ask_for_round(BY)
        wait_until(
            lambda: self._is_learning() == is_on, f"the learner to {'learn' if is_on else 'rest'}", ROUND_LIMIT_S
        )
        if not is_on:
            _return_to_learnt(self._server)

    def _is_learning(self) -> bool:
        return self._server.reader.learner_status().get("kind") == "learning"


def _die(server: MeasuredServer, *, is_on: bool) -> None:
    """Random weights come by a rollback: what a rollback has restored, the alarm `silent_death` does not take away."""
    if is_on:
        server.board.roll_back(BY, "planted: random weights", to=RANDOM)
        _wait_for(server, RANDOM)
    else:
        _return_to_learnt(server)


def _return_to_learnt(server: MeasuredServer) -> None:
    if server.board.read().live != LEARNT:
        server.board.move(LEARNT, VersionState.LIVE, BY, "the planted cause is over")
    _wait_for(server, LEARNT)


def _wait_for(server: MeasuredServer, draft: int) -> None:
    wait_until(lambda: server.reader.replica_status().get("draft_version") == draft, f"version {draft} to draft")
