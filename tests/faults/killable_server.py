"""An SGLang server that dies by SIGKILL in the middle of a swap: python killable_server.py FILE SGLANG_FLAGS.

It is started as `paceline serve` starts it, but for one thing: the scheduler process, a spawned child, loads this file
too and arms paceline's plugin before SGLang calls it. At every swap it reads FILE: the name of the point where it dies,
one of POINTS. Without that file it lives. FILE may name an exception instead, one of planted_server.PLANTS.
"""

import os
import runpy
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.serving import plugin
from planted_server import plant_all

POINT_FILE = "KILLABLE_POINT_FILE"  # environment variable that the server's processes inherit


@dataclass(frozen=True)
class Death:
    """In a commit, once this share of the parameters is copied."""

    copied: float
    is_whole_tree: bool  # with SGLang's other processes and the courier; else the scheduler process alone


POINTS = {
    "between_announcement_and_swap": Death(0.0, is_whole_tree=True),
    "half_way_through_a_swap": Death(0.5, is_whole_tree=False),
    "half_way_through_a_roll_back": Death(0.5, is_whole_tree=True),
}


def die(death: Death) -> None:
    from paceline.rig.processes import descendants

    launcher = os.getppid()
    own = os.getpid()
    if death.is_whole_tree:
        # The courier first and the launcher last: `paceline serve` ends the group of a launcher that is gone, this
        # process with it, and a courier that outlived them would deliver what it has.
        courier, tree = ([process.pid for process in descendants(pid)] for pid in (own, launcher))
        for pid in [*courier, *(pid for pid in tree if pid not in {own, *courier}), launcher]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os.kill(own, signal.SIGKILL)


def arm(point_file: Path) -> None:
    """Let this process die while it copies weights, if the file says so by then."""
    from paceline.serving.swap.sglang_draft import SglangDraft

    load = SglangDraft.load

    def deadly_load(self: SglangDraft, draft: Any) -> Any:
        point = point_file.read_text(encoding="utf-8") if point_file.exists() else ""
        if point in POINTS:
            death = POINTS[point]
            copied = int(len(draft.tensors) * death.copied)
            if copied:
                load(self, replace(draft, tensors=draft.tensors[:copied]))
            die(death)
        return load(self, draft)

    SglangDraft.load = deadly_load  # type: ignore[method-assign]


def arm_the_scheduler(point_file: Path) -> None:
    """Stage 2 of the plugin runs in the scheduler process alone."""
    install = plugin._install

    def armed(*arguments: Any, **named: Any) -> None:
        arm(point_file)
        plant_all(point_file)
        install(*arguments, **named)

    plugin._install = armed


def main() -> int:
    if POINT_FILE in os.environ:  # the second time around: SGLang's own main, and this file stays the main module
        runpy.run_module("sglang.launch_server", run_name="__main__")
        return 0
    from paceline.serving.launch.server import launch_plan, run_server

    point_file, *flags = sys.argv[1:]
    plan = launch_plan(flags, os.environ)
    argv = (sys.executable, __file__, *plan.argv[3:])  # without `python -m sglang.launch_server`
    return run_server(replace(plan, argv=argv, env={**plan.env, POINT_FILE: point_file}))


if POINT_FILE in os.environ:
    arm_the_scheduler(Path(os.environ[POINT_FILE]))

if __name__ == "__main__":
    sys.exit(main())
