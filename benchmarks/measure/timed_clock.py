"""Times the step clock's hooks inside a server: a folder for its PYTHONPATH, and the reader of what it wrote.

Python imports `sitecustomize` from that folder in every process of the server; it wraps StepClock's hook bodies before
anything is installed. Only the scheduler calls them.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ...serving.clock.step_clock import StepClock

_HOOKS = ("before_forward", "after_activate", "before_resolve", "before_stream", "after_prefill")
#: Steps between two writes.
_KEPT = 50


class TimedStep(NamedTuple):
    """One step: requests in it, when its result was there by `time.perf_counter`, and what its hooks took."""

    batch: int
    at_s: float
    hooks_s: float


def timing_path(folder: Path, times: Path) -> Path:
    """Make the folder, and return it; the scheduler appends its steps to `times`."""
    folder.mkdir(parents=True)
    call = f"from {__name__} import time_hooks\ntime_hooks({str(times)!r})\n"
    (folder / "sitecustomize.py").write_text(call, encoding="utf-8")
    return folder


def time_hooks(path: str) -> None:
    """Wrap the hooks of this process's clock."""
    times = _Times(Path(path))
    for name in _HOOKS:
        setattr(StepClock, name, times.timed(name, getattr(StepClock, name)))


def read_steps(path: Path) -> list[TimedStep]:
    """All steps, in order."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return [TimedStep(int(batch), float(at_s), float(hooks_s)) for batch, at_s, hooks_s in rows]


class _Times:
    """Adds up the hooks of a step, which ends with `before_stream`."""

    def __init__(self, path: Path) -> None:
        self._path, self._took_s, self._batch = path, 0.0, 0
        self._rows: list[TimedStep] = []

    def timed(self, name: str, hook: Callable[..., object]) -> Callable[..., object]:
        """The hook with a clock around it."""

        @functools.wraps(hook)
        def run(*arguments: Any, **named: Any) -> object:
            began_s = time.perf_counter()
            found = hook(*arguments, **named)
            ended_s = time.perf_counter()
            self._took_s += ended_s - began_s
            if name == "before_resolve":
                self._batch = len(arguments[3].reqs)
            elif name == "before_stream":
                self._end(ended_s)
            return found

        return run

    def _end(self, at_s: float) -> None:
        self._rows.append(TimedStep(self._batch, at_s, self._took_s))
        self._took_s, self._batch = 0.0, 0
        if len(self._rows) >= _KEPT:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{row.batch} {row.at_s!r} {row.hooks_s!r}\n" for row in self._rows)
            self._rows.clear()
