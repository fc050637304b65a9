"""Which panels changed since a tab last heard: one log for each choice of what tabs show."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .panels import Asked, snapshot
from .readings import View

#: Choices remembered, the least recently used forgotten; who comes back to one gets every panel again.
MAX_LOGS = 64


@dataclass(slots=True)
class PanelLog:
    """The newest JSON of each panel, and the number of the view in which it last changed."""

    seen: int = 0
    panels: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def update(self, view: View, asked: Asked) -> None:
        """Take in a view that has a look; one that was taken in before changes nothing."""
        if view.look is None or view.number <= self.seen:
            return
        self.seen = view.number
        for name, panel in snapshot(view.look, asked).items():
            raw = msgspec.json.encode(panel)
            if self.panels.get(name, (0, b""))[1] != raw:
                self.panels[name] = (view.number, raw)

    def since(self, number: int) -> dict[str, Any]:
        """Panels that changed after view `number`, as raw JSON; all of them with 0."""
        return {name: msgspec.Raw(raw) for name, (changed, raw) in self.panels.items() if changed > number}


class PanelLogs:
    """A PanelLog for each speculator and choice, which all tabs of that choice share; threads share it too."""

    def __init__(self) -> None:
        self._logs: OrderedDict[tuple[str, Asked], PanelLog] = OrderedDict()
        self._lock = threading.Lock()

    def updated(self, speculator: str, asked: Asked, view: View) -> PanelLog:
        """The log of this choice with `view` in it."""
        with self._lock:
            log = self._logs.setdefault((speculator, asked), PanelLog())
            self._logs.move_to_end((speculator, asked))
            while len(self._logs) > MAX_LOGS:
                self._logs.popitem(last=False)
        with log.lock:
            log.update(view, asked)
        return log
