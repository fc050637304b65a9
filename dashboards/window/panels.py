"""The eight panels of the page as JSON values, from one look at a board."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from ..answer import Answer, answer
from .accept_panel import SPANS, accept_panel
from .board_panels import lane_panel, positions_panel
from .draft_panel import draft_panel
from .look import Look
from .loop_panel import loop_panel
from .why_panel import why_panel

#: Seconds that are shown where nobody asked for others.
DEFAULT_SPAN_S = 900


@dataclass(frozen=True, slots=True)
class Asked:
    """What a tab shows beyond what all tabs show."""

    span_s: int = DEFAULT_SPAN_S
    draft: int | None = None  # None: the live one

    def __post_init__(self) -> None:
        if self.span_s not in SPANS:
            raise ValueError(f"span: got {self.span_s} s, expected one of {[*SPANS]}")


def snapshot(look: Look, asked: Asked) -> dict[str, Mapping[str, object]]:
    """Every panel by name. Changes nothing and asks nobody: the same look gives the same panels."""
    return some_panels(PANELS, look, asked)


def some_panels(names: Iterable[str], look: Look, asked: Asked) -> dict[str, Mapping[str, object]]:
    """Those of PANELS in `names`, as `snapshot` has them."""
    found = answer(look.seen)
    return {name: _PANELS[name](look, found, asked) for name in names}


def one_panel(name: str, look: Look, asked: Asked) -> Mapping[str, object]:
    """The panel `name`, one of PANELS, as `snapshot` has it."""
    return some_panels([name], look, asked)[name]


def _headline(found: Answer) -> dict[str, object]:
    return {"findings": [asdict(finding) for finding in found.findings]}


def _members(found: Answer) -> dict[str, object]:
    return {
        "members": [row.as_json() for row in found.rows],
        "alarms": [line.as_json() for line in found.alarms],
    }


_PANELS: Mapping[str, Callable[[Look, Answer, Asked], Mapping[str, object]]] = {
    "headline": lambda _, found, __: _headline(found),
    "accept": lambda look, _, asked: accept_panel(look, asked.span_s),
    "lane": lambda look, _, __: lane_panel(look),
    "positions": lambda look, _, __: positions_panel(look),
    "why": lambda look, _, __: why_panel(look),
    "draft": lambda look, _, asked: draft_panel(look, asked.draft),
    "loop": lambda look, found, _: loop_panel(look, found),
    "members": lambda _, found, __: _members(found),
}
#: Names of the panels, from top to bottom.
PANELS = tuple(_PANELS)
