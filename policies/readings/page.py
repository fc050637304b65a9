"""The definitions of all readings as Markdown: the last section of docs/monitoring.md."""

from collections.abc import Mapping

from .definitions import DEFINITIONS, Definition

_INTRODUCTION = """\
## What every figure means

Members count (`buffer/board/counters.py`) and never average. What is shown of a span of time is the difference of two
counts, added up over members (`policies/readings/windows.py`); a restart counts from 0 again.

- The 95 % interval of an accept length draws requests as wholes (Cochran 1977, eq. 6.13), that of `speed_over_plain`
  leaves out spans of time.
- A figure whose newest evidence is older than *at most* is unknown.
- Redis keeps an hour of counters: one entry per 5 s of the last ten minutes, one a minute before; at most some 1 MB
  of a replica.

`paceline readings` prints this section from `policies/readings/definitions.py`.
"""


def readings_markdown() -> str:
    """Return the last section of docs/monitoring.md."""
    return "\n".join([_INTRODUCTION, *_table(DEFINITIONS)]) + "\n"


def _table(definitions: Mapping[str, Definition]) -> list[str]:
    head = "| reading | unit | meaning | formula | counted | sent by | at most |"
    rows = [
        f"| `{name}` | {each.unit} | {each.meaning} | {each.formula} | {each.counted_in} | {each.source} | "
        f"{each.max_age_s:g} s |"
        for name, each in sorted(definitions.items())
    ]
    return [head, "|" + "---|" * 7, *rows]
