"""The definitions of all readings as a page: docs/readings.md."""

from collections.abc import Mapping

from .definitions import DEFINITIONS, Definition

_INTRODUCTION = """\
# Readings

<!-- Written by `paceline readings > docs/readings.md`; edit policies/readings/definitions.py instead. -->

Every figure that commands, MLflow and documents show is one of these, under this name and by this formula. Members
count (`buffer/counters.py`) and never average: what a window of time shows is the difference of two counts, added up
over members (`policies/readings/windows.py`). A restart counts from 0 again.

- A figure comes with its count, its age and, where one can be given, its 95 % interval. The interval of an accept
  length draws requests as wholes (Cochran 1977, eq. 6.13), that of `speed_over_plain` leaves out spans of time.
- What is not known is never shown as 0: it is unknown, with the reason. A member that sends no counters makes
  nothing wrong and nothing known.
- A figure whose newest evidence is older than its limit is unknown, since silence says nothing.

Members send counters with every heartbeat. Redis keeps an hour of them: one entry per 5 s of the last ten minutes, one
a minute before that, some 0.45 MB of a replica that counts all it has room for.
"""


def readings_markdown() -> str:
    """Return docs/readings.md."""
    return "\n".join([_INTRODUCTION, *_table(DEFINITIONS)]) + "\n"


def _table(definitions: Mapping[str, Definition]) -> list[str]:
    head = "| reading | unit | meaning | formula | counted | sent by | at most |"
    rows = [
        f"| `{name}` | {each.unit} | {each.meaning} | {each.formula} | {each.counted_in} | {each.source} | "
        f"{each.max_age_s:g} s |"
        for name, each in sorted(definitions.items())
    ]
    return [head, "|" + "---|" * 7, *rows]
