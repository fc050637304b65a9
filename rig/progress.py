"""Progress of slow steps: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

#: Called with the share done, 0..1, and a short note such as the current loss.
Report = Callable[[float, str], None]

_PLAIN_EVERY_S = 10.0


def quiet(_done: float, _note: str) -> None:
    """A Report that shows nothing."""


@contextmanager
def progress_bar(title: str, console: Console) -> Iterator[Report]:
    """A bar on a terminal, a line every ten seconds elsewhere; yields the Report that moves it."""
    if not console.is_terminal:
        yield _plain_lines(title, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=1.0, note="")
        yield lambda done, note: progress.update(task, completed=done, note=note)


def _plain_lines(title: str, console: Console) -> Report:
    last = float("-inf")

    def report(done: float, note: str) -> None:
        nonlocal last
        if done >= 1.0 or time.monotonic() - last >= _PLAIN_EVERY_S:
            last = time.monotonic()
            console.print(f"{title}: {done:4.0%} {note}", highlight=False)

    return report
