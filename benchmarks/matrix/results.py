"""What was measured, as it is kept in a file while rows are run, and what of an earlier file still holds."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from ...buffer.errors import ConfigError
from ...rig.runs import machine
from ..measure.code_digest import code_digest

Machine = Mapping[str, str | int]

_HOUSE = Path(__file__).resolve().parents[2]
#: What decides what a row says, and the one file of it that does not: it only makes the page.
_DECIDING = (
    "buffer",
    "policies",
    "serving",
    "learner",
    "rig",
    "benchmarks/measure",
    "benchmarks/matrix",
    "benchmarks/compatibility.py",
)
_THE_PAGE = "benchmarks/matrix/table.py"


@dataclass(frozen=True, slots=True)
class Cells:
    """One row on one release, its cells by column."""

    release: str
    row: str  # the key of a Row
    found: Mapping[str, str]
    seconds: float  # from starting the server to the last cell


@dataclass(frozen=True, slots=True)
class Measured:
    """Rows measured by one state of the code on one machine in one environment."""

    machine: Machine
    code: str  # digest of the files that decide what a row says
    cells: tuple[Cells, ...]

    @classmethod
    def nothing_yet(cls) -> Self:
        """No row, by this code on this machine."""
        return cls(machine(), code_digest(_HOUSE, _DECIDING, _THE_PAGE), ())

    def with_row(self, cells: Cells) -> Self:
        """The same with a row at the end, in the place of the one of that name if there is one."""
        return replace(self, cells=(*(each for each in self.cells if each.row != cells.row), cells))

    def save(self, file: Path) -> None:
        """Write as JSON, in one step: an interrupted run leaves the file whole."""
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(".part")
        written.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        written.replace(file)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what `save` wrote. ConfigError when the file is not that."""
        try:
            source = json.loads(file.read_text(encoding="utf-8"))
            return cls(source["machine"], source["code"], tuple(Cells(**cells) for cells in source["cells"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file}: got {error!r}, expected a file that --json wrote") from error


def still_holding(file: Path, now: Measured) -> tuple[Measured, str]:
    """`now` with the rows of `file` that were measured by the same code in the same environment; else why with none.

    A file that is absent holds none and needs no reason.
    """
    if not file.exists():
        return now, ""
    try:
        before = Measured.read(file)
    except ConfigError as error:
        return now, f"{error}; all rows are run again"
    if before.machine != now.machine:
        return now, f"{file}: got {dict(before.machine)}, expected {dict(now.machine)}; all rows are run again"
    if before.code != now.code:
        return now, f"{file} was measured with other code; all rows are run again"
    return before, ""
