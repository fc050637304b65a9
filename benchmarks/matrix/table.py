"""What was measured, as docs/compatibility.md."""

import json
import re
from collections.abc import Iterable, Sequence
from textwrap import shorten

from ...serving.sglang_speculation import CHAIN_FLAGS
from ...serving.supported_release import SUPPORTED
from .results import Cells, Measured
from .rows import FACTORS, IN_BLOCKS, OWN_LAYER, PER_RELEASE, QUANTISED, ROWS, WITHOUT_MODEL, Row

COLUMNS = ("capture", "replay", "swap", "pacing")
#: Longest cell; what paceline says in full is in docs/troubleshooting.md.
CELL_CHARS = 100
#: What most rows have under pacing, and what stands for it.
_UNPACED = "no: the server runs without --speculative-adaptive"
_NOT_PACED = "off"
_REPLAYED = re.compile(r"(\d+) of (\d+) rounds, (\d+) drafts? accepted")

_TITLE = "# What works on which SGLang\n"
_INTRODUCTION = f"""`make compatibility` writes this page: for each row it starts the real server on the CPU host,
serves eight requests of 24 tokens, trains the draft on what was captured, swaps it in, and serves the same requests
again. Every release runs with the torch named below; later ones pin another
([CONTRIBUTING](../CONTRIBUTING.md#adding-a-release-of-sglang)). For GPUs see [gpu.md](gpu.md).

| column | says |
|---|---|
| capture | "yes": every trace has the tokens and the number of accepted drafts of its answer |
| replay | in how many verify rounds replay of the untrained draft accepts as many tokens as were served |
| swap | "yes": the trained draft was swapped in while the server ran; then the same of it |
| pacing | "yes": paceline chose the number of draft steps; "{_NOT_PACED}": {_UNPACED.removeprefix("no: ")} |

"no" is followed by paceline's reason ([troubleshooting.md](troubleshooting.md)) or the end of the server's log. Rounds
that replay cannot judge are not compared ([learning.md](learning.md#what-replay-can-judge)). Capture "in part" says how
many tokens traces hold, all of them right, and how many were counted as dropped.

Every server has `--speculative-algorithm EAGLE3` and a draft, `NEXTN` where its draft is a layer of the target's
checkpoint, `DFLASH` where it drafts whole blocks, or `NGRAM` and no draft. *Chain* means
`{CHAIN_FLAGS}`.
The target *Llama* is trained for minutes; other families have random weights, four layers and the real architecture. So
this says what runs and what is exact, not how fast it is.
"""

#: Factor -> what the table of it needs to be said.
_NOTES = {
    QUANTISED: """Llama 3, its matrices stored as people publish them and read by SGLang's own loader, or quantised by
SGLang; embedding and head are plain. The CPU host has no kernels for them: it dequantises every matrix once. So these
rows say what is read, captured, replayed and swapped, and nothing of a GPU's kernels, which may quantise activations.

For a GPU are left: those kernels, FP4 (NVFP4, MXFP4), bitsandbytes, GGUF, quantised experts, a KV cache of 8 bits.
""",
    OWN_LAYER: """A target of four layers whose checkpoint has one layer more, which drafts; the target is named as the
draft as well. What is learned and swapped is that layer alone: dense for MiMo, with experts for the others, and with
latent attention for DeepSeek-V3.
""",
    IN_BLOCKS: """A draft of two layers that makes a block of four in one forward, the round's root and three
drafts, by SGLang's own worker. SGLang lets DFLASH run on CUDA, XPU and NPU; the CPU host makes it run here, with
attention in plain torch and without a GPU's fused kernels. A draft is best tokens, so requests above temperature 0 are
verified by equality too, and replay of them is exact.
""",
    WITHOUT_MODEL: """No draft: SGLang looks drafts up in its table of the n-grams that it has served, as trees of 11.
Traces hold tokens alone, so nothing is replayed or swapped here; what a learner makes of them is tried in
`tests/e2e/test_ngram.py`.
""",
    "pair": """A target as people serve it, with how they start the server or what they ask of it. A draft of half the
vocabulary proposes every other token; an EAGLE-3.1 draft has a norm for each target layer; the system prompt is 96
tokens. At a temperature a random target says something new every time, which no draft learns.

No row has what most GPU servers have and the CPU host lacks: the overlap schedule, CUDA graphs, kernels for weights
of 8 or 4 bits, a KV cache of 8 bits, attention kernels of a GPU.
""",
}


def page(measured: Sequence[Measured]) -> str:
    """The whole document: what it says, the machine, a table per factor, and what was not run.

    Of a row that several of `measured` have for one release the last one counts.
    """
    cells = list({(each.release, each.row): each for part in measured for each in part.cells}.values())
    tables = [line for factor in FACTORS for line in _section(factor, cells)]
    return "\n".join([_TITLE, _answer(cells), "", _INTRODUCTION, _machines(measured), "", *tables, *_not_run(cells)])


def _answer(cells: Sequence[Cells]) -> str:
    """How many rows do what most readers come for."""
    captured = sum(each.found["capture"] == "yes" for each in cells)
    swapped = sum(each.found["swap"].startswith("yes") for each in cells)
    return (
        f"Of the {len(cells)} servers below, {captured} have every trace captured, and {swapped} took a trained draft "
        "while they ran. The others say why not."
    )


def shortened(text: str) -> str:
    """One line of at most CELL_CHARS characters that a cell can hold."""
    text = _NOT_PACED if text == _UNPACED else _REPLAYED.sub(r"\1 of \2, \3 accepted", text)
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
