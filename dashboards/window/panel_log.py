"""Which panels changed since a tab last heard: one log for each choice of what tabs show."""

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .panels import PANELS, Asked, some_panels
from .readings import View

#: Choices remembered, the least recently used forgotten; who comes back to one gets every panel again.
MAX_LOGS = 64

#: Panels that read whole histories, which get an entry every few seconds: made so seldom, and when the board changes or
#: a member falls silent or comes.
EVERY_S: Mapping[str, float] = {"accept": 5.0, "why": 15.0}


@dataclass(slots=True, kw_only=True)
class PanelLog:
    """The newest JSON of each panel, and the number of the view in which it last changed."""

    seen: int = 0
    panels: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _made_at: dict[str, float] = field(default_factory=dict)
    _state: object = None  # id of the newest event on the board, and who is present

    def update(self, view: View, asked: Asked) -> None:
        """Take in a view that has a look; one that was taken in before changes nothing."""
        if view.look is None or view.number <= self.seen:
            return
        self.seen = view.number
        due = self._due(view.at, (view.look.seen.state.last_event_id, tuple(view.look.seen.present())))
        for name, panel in some_panels(due, view.look, asked).items():
            raw = msgspec.json.encode(panel)
            if self.panels.get(name, (0, b""))[1] != raw:
                self.panels[name] = (view.number, raw)

    def _due(self, at: float, state: object) -> list[str]:
        """Panels to make of a view of that time."""
        is_moved = state != self._state
        self._state = state
        due = [name for name in PANELS if is_moved or at - self._made_at.get(name, -math.inf) >= EVERY_S.get(name, 0.0)]
        self._made_at |= dict.fromkeys(due, at)
        return due

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
