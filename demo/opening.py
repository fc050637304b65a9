"""The demo's first screen: what is started, what there is to see and about when, and how long it takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Minutes on two cores, at best and where other work shares them; `make demo` of docs/measured.md lies between.
TARGET_MIN = 3.0
START_MIN = 1.0, 2.0
CHECK_MIN = 0.5, 1.5
SPEED_MIN = 1.5, 2.5
_TOKENS_PER_S = 180.0, 95.0  # of all requests together; slow before the first learnt draft, and four at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of the demo on which the times it announces depend."""

    requests: int
    concurrency: int
    max_tokens: int
    prompts: Path | None  # None: source code, then prose
    most_per_step: int  # tokens that a step of the target yields when all drafted ones are accepted
    skips_speed: bool = False  # tokens per second are not compared at the end
    target: str | None = None  # None: one that the demo trains
    draft: Path | None = None  # None: one of random weights
    tokens_per_s: tuple[float, float] = _TOKENS_PER_S

    @property
    def traffic_min(self) -> tuple[float, float]:
        """Minutes of traffic, at best and where other work shares the cores."""
        quick, slow = (self.requests * self.max_tokens / rate / 60.0 for rate in self.tokens_per_s)
        return quick, slow

    @property
    def total_min(self) -> tuple[float, float]:
        """Minutes of the whole demo, at best and on a busy machine, without training the target."""
        stages = START_MIN, self.traffic_min, CHECK_MIN, (0.0, 0.0) if self.skips_speed else SPEED_MIN
        quick, slow = map(sum, zip(*stages, strict=True))
        return quick, slow


def print_opening(console: Console, plan: Plan) -> None:
    """Print the first screen."""
    begins = "that starts from random weights " if plan.draft is None else ""
    for line in (
        f"paceline demo: a draft model {begins}learns from live traffic.",
        "Started on this machine, and ended with the demo: Redis, SGLang, a learner, a live page.",
        f"Accept length is tokens per step of the target: 1 if the draft helps nothing, at most {plan.most_per_step}.",
    ):
        console.print(line, highlight=False, markup=False)
    table = Table(title="what you will see", title_justify="left", show_header=False)
    for when, what in sights(plan):
        table.add_row(Text(when), Text(what))
    console.print(table)
    lasts = f"About {_minutes(*plan.total_min)} on two CPU cores, and {TARGET_MIN:.0f} more the first time."
    if plan.target is not None:
        lasts = f"About {_minutes(*plan.total_min)} here, by the speed of this processor and the size of the target."
    console.print(f"{lasts} The address of the live page comes as soon as it is up.", highlight=False, markup=False)


def sights(plan: Plan) -> Sequence[tuple[str, str]]:
    """Return what there is to see and when, in order."""
    served = f"{plan.requests} requests are served, {plan.concurrency} at a time, for {_minutes(*plan.traffic_min)}"
    first, second = ("source code", "prose") if plan.target is None else ("explanations of code", "summaries")
    traffic = f": those of {plan.prompts}" if plan.prompts else f": {first} first, {second} from half-way on"
    begins = f"a small target is trained on local text ({TARGET_MIN:.0f} min, once) and the server starts"
    if plan.target is not None:
        begins = f"a server of {plan.target} starts, with {plan.draft or 'a draft of random weights'}"
    turn = [
        ("half-way", f"traffic turns to {second} and accept length falls: no draft has learnt {second} yet"),
        (
            "from there",
            "new drafts learn it, and accept length climbs again; a draft that is not shown to help is refused",
        ),
    ]
    and_speed = "" if plan.skips_speed else ", and so are tokens per second"
    return [
        ("first", begins),
        ("then", served + traffic),
        (
            "1 or 2 min in",
            "the first learnt draft is swapped into the running server; accept length leaves 1 and climbs",
        ),
        *([] if plan.prompts else turn),
        ("at the end", f"answers are compared with plain decoding{and_speed}; then a table and one picture"),
    ]


def _minutes(low: float, high: float) -> str:
    """Whole minutes, one at least; a range where the two differ."""
    few, many = (max(1, round(each)) for each in (low, high))
    return f"{few} min" if few == many else f"{few} to {many} min"
