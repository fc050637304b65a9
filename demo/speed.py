"""The demo's last minute and a half: what its drafts bring in tokens per second, against a server without one.

The demo's target is so small that its steps cost little more than the draft's, and accepted drafts save no time. So it
is deepened first by layers that change no answer, as in benchmarks/serving.py, of which this is a small form: a step
then costs some ten of the draft's, as with a large target.
"""

import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..buffer.errors import PacelineError
from ..policies.acceptance import Tally
from ..rig.deployment import LocalDeployment
from ..rig.models.deepened import LAYERS, slower
from ..rig.models.target import TargetModel
from ..rig.prompts import Prompt
from ..rig.ratio import Ratio, ratio
from ..rig.speed.arm import Arm, ArmServer, running_arms
from ..rig.speed.turn import Turn, different, take_turn, take_turns
from .own_target import device_flags

PLAIN = "plain"
FIRST = "first-draft"
LAST = "last-draft"
MEANING = {PLAIN: "no draft", FIRST: "the draft it began with", LAST: "the last draft it learnt"}
CONCURRENCY = 4
#: Asking ends with the block that begins last before this time is over; starting the servers takes half as long again.
ASKING_S = 60.0
_SEED = 0


def print_speed(
    console: Console,
    target: TargetModel,
    drafts: tuple[Path, Path],
    *,
    prompts: Sequence[Prompt],
    max_tokens: int,
    local: LocalDeployment,
    is_deepened: bool = True,
) -> None:
    """Serve the last of `prompts` again, with no draft, the first and the last one in `drafts`, and print the ratios.

    Nothing is captured. Blocks for about a minute and a half; deepens the target beside it, 100 MB, the first time, if
    it `is_deepened`. A server that fails, or a full disk, is told of and raises nothing: the run's report is still to
    be written.
    """
    arms = [Arm(PLAIN, None), *(Arm(name, draft) for name, draft in zip((FIRST, LAST), drafts, strict=True))]
    console.print("the last prompts once more, on three servers in turns: no draft, the first draft, the last draft")
    try:
        served = slower(target) if is_deepened else target
        with running_arms(arms, served, local, [] if is_deepened else device_flags()) as servers:
            blocks = asked(servers, prompts, max_tokens)
    except (PacelineError, OSError) as fault:  # a deepened target takes 100 MB
        console.print(f"tokens per second were not compared: {fault}", highlight=False, markup=False)
        return
    console.print(speed_table(blocks))
    if not is_deepened:
        return
    console.print(
        f"On this machine, with the target deepened to {LAYERS} layers that change no answer, so that a step "
        "costs some ten of the draft's, as with large targets; a step of the demo's own costs little more than one.",
        highlight=False,
    )


def asked(servers: dict[str, ArmServer], prompts: Sequence[Prompt], max_tokens: int) -> list[list[Turn]]:
    """Blocks of CONCURRENCY prompts, the newest first, each answered by all servers in a random order.

    A block that is not counted comes first: the first requests of a server take longer.
    """
    draw = random.Random(_SEED)  # noqa: S311 - an order
    began_s = time.monotonic()
    blocks = list[list[Turn]]()
    for begin in range(len(prompts) - CONCURRENCY, -1, -CONCURRENCY):
        if blocks and time.monotonic() - began_s > ASKING_S:
            break
        ask = partial(
            take_turn,
            prompts=prompts[begin : begin + CONCURRENCY],
            concurrency=CONCURRENCY,
            max_tokens=max_tokens,
            label=f"speed-{begin}",
        )
        blocks.append(take_turns(servers, ask, draw))
    return blocks[1:] or blocks


def speed_table(blocks: Sequence[Sequence[Turn]]) -> Table:
    """Tokens per second of each arm over those of the one without a draft, block by block, and what was changed."""
    table = Table(title="tokens per second", title_justify="left")
    for head in ("served with", "over no draft", "accept length", "other answers"):
        table.add_column(head)
    for arm, meaning in MEANING.items():
        turns = [turn for block in blocks for turn in block if turn.arm == arm]
        wrong = sum(name.startswith(f"{arm} ") for block in blocks for name in different(block, PLAIN))
        answers = sum(len(turn.answers) for turn in turns)
        accept = sum((turn.tally for turn in turns), Tally()).accept_length
        table.add_row(meaning, _text(over_plain(blocks, arm)), f"{accept:.2f}", f"{wrong} of {answers}")
    return table


def over_plain(blocks: Sequence[Sequence[Turn]], arm: str) -> Ratio:
    """Return the speed of an arm over that without a draft, from at least one block."""
    rates = [{turn.arm: turn.tokens_per_second for turn in block} for block in blocks]
    return ratio([each[arm] for each in rates], [each[PLAIN] for each in rates])


def _text(found: Ratio) -> str:
    low, high = found.interval
    return f"{found.mean:.2f}" + (f" ({low:.2f} .. {high:.2f})" if found.pairs > 1 else "")
