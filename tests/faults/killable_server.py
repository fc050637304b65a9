"""An SGLang server that dies by SIGKILL at one point of its life: python killable_server.py POINT SGLANG_FLAGS.

Started as `paceline serve` starts it, but for one thing: the scheduler process loads this file too, being a spawned
child of it, and arms paceline's plugin before SGLang calls it. POINT `none` lives.
"""

import os
import runpy
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from paceline.serving import plugin

POINT = "MORTAL_POINT"  # environment variable that the server's processes inherit


@dataclass(frozen=True)
class Death:
    """In the commit of this number, counted from 1, once this share of the parameters is copied."""

    commit: int
    copied: float
    is_whole_tree: bool  # with SGLang's other processes and the courier; else the scheduler process alone


POINTS = {
    "between_announcement_and_swap": Death(1, 0.0, is_whole_tree=True),
    # A server that finds another version live than it was started with commits once for that.
    "half_way_through_a_swap": Death(2, 0.5, is_whole_tree=False),
    "half_way_through_a_roll_back": Death(2, 0.5, is_whole_tree=True),
}


def die(death: Death) -> None:
    from paceline.rig.processes import descendants

    launcher, own = os.getppid(), os.getpid()
    if death.is_whole_tree:
        # The courier first and the launcher last: `paceline serve` ends the group of a launcher that is gone, this
        # process with it, and a courier that outlived them would deliver what it has.
        courier, tree = ([process.pid for process in descendants(pid)] for pid in (own, launcher))
        for pid in [*courier, *(pid for pid in tree if pid not in {own, *courier}), launcher]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os.kill(own, signal.SIGKILL)


def arm(death: Death) -> None:
    """Let this process die while it copies weights."""
    from paceline.serving.swap.sglang_swap import SglangSwap

    copy, commits = SglangSwap._copy, [0]

    def mortal_copy(self: SglangSwap, draft: Any) -> Any:
        commits[0] += 1
        if commits[0] == death.commit:
            copied = int(len(draft.tensors) * death.copied)
            if copied:
                copy(self, replace(draft, tensors=draft.tensors[:copied]))
            die(death)
        return copy(self, draft)

    SglangSwap._copy = mortal_copy  # type: ignore[method-assign]


def arm_the_scheduler(death: Death) -> None:
    """Stage 2 of the plugin runs in the scheduler process alone."""
    install = plugin._install

    def armed(*arguments: Any) -> None:
        arm(death)
        install(*arguments)

    plugin._install = armed


def main() -> int:
    if POINT in os.environ:  # the second time around: SGLang's own main, and this file stays the main module
        runpy.run_module("sglang.launch_server", run_name="__main__")
        return 0
    from paceline.serving.launch.server import launch_plan, run_server

    point, *flags = sys.argv[1:]
    plan = launch_plan(flags, os.environ)
    argv = (sys.executable, __file__, *plan.argv[3:])  # behind `python -m sglang.launch_server`
    return run_server(replace(plan, argv=argv, env={**plan.env, POINT: point}))


if os.environ.get(POINT, "none") != "none":
    arm_the_scheduler(POINTS[os.environ[POINT]])

if __name__ == "__main__":
    sys.exit(main())
