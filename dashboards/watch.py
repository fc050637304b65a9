"""Shows an answer again and again until Ctrl-C, and says so at once when there is none any more."""

import json
import time
from collections.abc import Callable
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from ..buffer.errors import BufferUnavailable
from ..buffer.plain_text import printable, utc_time

#: Between two looks. A server beats every second.
LOOK_S = 1.0


class Shown(Protocol):
    """What can be looked at."""

    def view(self) -> RenderableType:
        """For a terminal."""
        ...

    def as_json(self) -> dict[str, object]:
        """As JSON values."""
        ...


def watch(
    look: Callable[[], Shown], console: Console, *, as_json: bool, pause: Callable[[float], object] = time.sleep
) -> None:
    """Show what `look` returns whenever it differs from what is shown; ends with KeyboardInterrupt, quietly.

    In place on a terminal; elsewhere, and as JSON, one after another. While Redis does not answer, that alone is shown.
    """
    is_live = console.is_terminal and not as_json
    with Live(console=console, auto_refresh=False) if is_live else _Printed(console, as_json=as_json) as screen:
        try:
            while True:
                screen.update(_looked(look, as_json=as_json), refresh=True)
                pause(LOOK_S)
        except KeyboardInterrupt:
            return


class _Printed:
    """Prints what differs from what was printed last."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self._as_json = as_json
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def update(self, shown: RenderableType, *, refresh: bool) -> None:
        del refresh
        with self._console.capture() as captured:
            self._console.print(shown, soft_wrap=self._as_json)
        if captured.get() != self._last:
            self._last = captured.get()
            self._console.file.write(self._last)
            self._console.file.flush()


def _looked(look: Callable[[], Shown], *, as_json: bool) -> RenderableType:
    try:
        shown = look()
    except BufferUnavailable as fault:
        said = f"cannot tell since {utc_time(time.time())}: {fault}"
        return Text(json.dumps({"exit_code": 2, "error": str(fault)}) if as_json else printable(said), style="bold red")
    return Text(json.dumps(shown.as_json())) if as_json else shown.view()
