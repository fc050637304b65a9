"""What one run of the demo leaves: requests as they were served, and what was to be expected of every version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...learner.disk import write_text
from ...policies.acceptance import Tally

FILE = "run.json"


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request; they are sent in the order of their numbers."""

    number: int
    domain: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """One version that served: samples by request, in the order they ended."""

    number: int
    judged: tuple[Tally, ...]  # replayed with its weights: the newest requests, when it was published, not learnt from
    served: tuple[Tally, ...]
    #: Replayed with an earlier version's weights: all requests since that one's last, up to the last one served here.
    #: That draft learnt from none of them, so only traffic changes what it has accepted. Empty: no version is so early.
    watched: tuple[Tally, ...]
    #: How far the domains of `judged` and `served` differ, as policies/readings/traffic_move.py measures labels; None:
    #: `judged` is empty.
    moved: float | None
    on_board: float | None  # the accept length that the gate put on the board; None: none
    board_error: float | None = None  # its standard error as the board has it; None: none, or an older release's


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run was made under. Runs are compared only where all but `commit` and `settings` are equal."""

    commit: str
    settings: Mapping[str, str]
    seed: int
    requests: int  # to send
    max_tokens: int
    target: str
    machine: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of the demo, read from its Redis after it ended."""

    conditions: Conditions
    initial_draft: str  # sha256 of the weights that the server was started with
    requests: tuple[ServedRequest, ...]
    missing: int  # requests without a trace
    versions: tuple[ServedVersion, ...]  # those that served, the initial one left out
    published: int  # versions on the board, the initial one included
    seconds: float

    @property
    def after_shift(self) -> Sequence[Tally]:
        """Requests of the last domain, in the order sent."""
        return [request.tally for request in self.requests if request.domain == self.requests[-1].domain]


def save(folder: Path, run: RecordedRun) -> None:
    """Write FILE into `folder`, whole or not at all."""
    write_text(folder / FILE, msgspec.json.format(msgspec.json.encode(run), indent=1).decode() + "\n")


def kept(folder: Path, conditions: Conditions) -> RecordedRun | None:
    """The run of an earlier invocation, None without one. SystemExit when it was made under other conditions."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        run = msgspec.json.decode(file.read_bytes(), type=RecordedRun)
    except msgspec.MsgspecError as error:
        raise SystemExit(f"{file}: got {error}, expected a run of this bench; remove it") from error
    if run.conditions != conditions:
        raise SystemExit(f"{file}: got {run.conditions}, expected {conditions}; remove it or use another --out")
    return run
