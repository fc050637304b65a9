"""Switches a planted cause off and on in turn, and records what clients measured and what the board's history says."""

from collections.abc import Mapping, Sequence

import msgspec

from ...buffer.base import VersionBoard
from ...buffer.counters import Counters
from ...policies.readings.causes.parts import Cause
from ..measure.measured_server import MeasuredServer, wait_until
from .plants import Plant
from .traffic import Phase, serve_for


class Recording(msgspec.Struct, frozen=True):
    """One planted cause: the phases without it and with it, in turn, and the histories that hold all of them."""

    name: str
    cause: Cause  # that `explain` should name
    off: Sequence[Phase]
    on: Sequence[Phase]
    histories: Mapping[str, Sequence[Counters]]  # by member


def recorded(server: MeasuredServer, plant: Plant, pairs: int, seconds: float) -> Recording:
    """Run `pairs` of a phase without the cause and one with it, of so many seconds each."""
    off: list[Phase] = []
    on: list[Phase] = []
    for _ in range(pairs):
        for is_on, phases in ((False, off), (True, on)):
            plant.switch(is_on)
            phases.append(serve_for(server.url, plant.on if is_on else plant.off, seconds))
    plant.switch(False)
    wait_until(lambda: _has_entries_until(server.board, on[-1].ended_s), "the history to reach the last phase")
    histories = {member: server.board.history(member) for member in server.board.members()}
    return Recording(plant.name, plant.cause, off, on, histories)


def _has_entries_until(board: VersionBoard, until_s: float) -> bool:
    return all(board.history(member)[-1].at >= until_s for member in board.members() if member.startswith("replica:"))
