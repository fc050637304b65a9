"""What was measured, as docs/compatibility.md."""

import json
from collections.abc import Iterable, Sequence
from textwrap import shorten

from ...serving.sglang_speculation import CHAIN_FLAGS
from ...serving.supported_release import SUPPORTED
from .results import Cells, Measured
from .rows import FACTORS, PER_RELEASE, ROWS, Row

COLUMNS = ("capture", "replay", "swap", "pacing")
#: Longest cell; what paceline says in full is in docs/troubleshooting.md.
CELL_CHARS = 150

_INTRODUCTION = f"""# What works on which SGLang

`make compatibility` writes this page. For every row of its tables it starts the real server on the CPU host, serves
eight requests of 24 tokens, trains the draft on what was captured of them, swaps the result in, and serves the same
requests again. What users start with is run on every release; after that each factor is varied alone, and ten pairs of
factors together, on SGLang {SUPPORTED[0]}. All releases run with one torch, named below; the later ones pin another
([CONTRIBUTING](../CONTRIBUTING.md#adding-a-release-of-sglang)). What is known of GPUs is in [gpu.md](gpu.md).

| column | says |
|---|---|
| capture | "yes": every trace has the tokens and the number of accepted drafts of its answer |
| replay | in how many verify rounds the draft, replayed over the traces, has as many drafts accepted as were served |
| swap | "yes": the trained draft was swapped in while the server ran, and traces were right again; then replay of it |
| pacing | "yes": paceline chose the number of draft steps of every round |

"no" is followed by paceline's own reason ([troubleshooting.md](troubleshooting.md)) or, of a server that did not start,
by the end of its log. Beside each figure of replay stands how many drafts were accepted in all rounds: of an untrained
draft there are few or none, of the trained one many. Rounds without drafts and those that replay cannot judge are not
compared ([judging.md](judging.md)); under rejection sampling the drafts accepted in all rounds stand beside those to be
expected, with a standard error. Capture "in part" says how many tokens traces hold, all of them right, and how many
trace windows the replica counted as dropped.

Every server has `--speculative-algorithm EAGLE3` and a draft. *Chain* among the flags means
`{CHAIN_FLAGS}`.
The target *Llama* is trained for minutes on text of this machine; those of other families have random weights, four
layers and the real architecture. So the table is about what runs and what is exact, not about speed. A target for which
SGLang wants attention kernels of a GPU does not start here, which says nothing of a GPU.
"""

#: Factor -> what the table of it needs to be said.
_NOTES = {
    "pair": """A target as people serve it, with how they start the server or what they ask of it. *Llama 3* has llama3
rope. A draft of half the vocabulary proposes every other token, as published drafts propose the 32,000 most frequent
ones. An EAGLE-3.1 draft has a norm for each target layer, and its steps are fed normed outputs. The system prompt is 96
tokens that all requests of the row begin with. At a temperature, a random target says something new every time, which
no draft learns: its rounds show that replay agrees with verification, and not that anything is accepted.

No row has what the CPU host lacks and most GPU servers have: the overlap schedule and CUDA graphs (both are off in
every row), weights or a KV cache of 8 or 4 bits, attention kernels of a GPU. Of pairs with those this table says
nothing.
""",
}


def page(measured: Sequence[Measured]) -> str:
    """The whole document: what it says, the machine, a table per factor, and what was not run.

    Of a row that several of `measured` have for one release the last one counts.
    """
    cells = list({(each.release, each.row): each for part in measured for each in part.cells}.values())
    tables = [line for factor in FACTORS for line in _section(factor, cells)]
    return "\n".join([_INTRODUCTION, _machines(measured), "", *tables, *_not_run(cells)])


def shortened(text: str) -> str:
    """One line of at most CELL_CHARS characters that a cell can hold."""
    return shorten(text, CELL_CHARS, placeholder=" ...").replace("|", "\\|")


def _section(factor: str, cells: Sequence[Cells]) -> Iterable[str]:
    ordered = sorted(cells, key=lambda each: each.release)
    lines = [_line(row, each) for row in ROWS if row.factor == factor for each in ordered if each.row == row.key]
    if not lines:
        return []
    heads = ("SGLang", "server", "flags", *COLUMNS)
    note = [_NOTES[factor]] if factor in _NOTES else []
    return [f"## {FACTORS[factor]}", "", *note, _joined(heads), "|" + "---|" * len(heads), *lines, ""]


def _line(row: Row, cells: Cells) -> str:
    return _joined((cells.release, row.name, row.shown_flags, *(shortened(cells.found[name]) for name in COLUMNS)))


def _joined(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _machines(measured: Sequence[Measured]) -> str:
    """Everything but SGLang, which the tables name, once for all that agree on it; and how long the rows took."""
    told = {json.dumps({name: value for name, value in each.machine.items() if name != "sglang"}) for each in measured}
    machines = "; and on ".join(
        ", ".join(f"{name} {value}" for name, value in json.loads(machine).items()) for machine in sorted(told)
    )
    minutes = sum(cells.seconds for each in measured for cells in each.cells) / 60
    return f"Measured on {machines}. The rows took {minutes:.0f} minutes in all."


def _not_run(cells: Sequence[Cells]) -> list[str]:
    """One sentence on the rows that are missing; nothing when there is none."""
    run = {(each.release, each.row) for each in cells}
    left = [f"{row.name} ({release})" for row in ROWS for release in _releases(row) if (release, row.key) not in run]
    return [f"Not run: {'; '.join(left)}.", ""] if left else []


def _releases(row: Row) -> Sequence[str]:
    """Those that the row is meant to be run on."""
    return SUPPORTED if row.factor == PER_RELEASE else SUPPORTED[:1]
