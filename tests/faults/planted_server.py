"""An SGLang server with an exception planted into its hooks: python planted_server.py FILE SGLANG_FLAGS.

Started as killable_server.py is. While FILE names one of PLANTS, that function raises, and FILE.hit is written.
Any number of faults leaves capture on here, so that every hook gets its turn on one server.
"""

import importlib
import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.serving import breaker, plugin

PLANT_FILE = "PLANTED_FILE"  # environment variable that the server's processes inherit

#: Name -> module, owner and function: what hook bodies and handlers call first, and half-way.
PLANTS = {
    "choosing in the verify hook": ("capture.request_choice", "RequestChoice", "choose_again"),
    "the verify hook": ("capture.sglang_capture", "SglangCapture", "_verified"),
    "choosing in the prefill hook": ("capture.request_choice", "RequestChoice", "choose"),
    "the prefill hook": ("capture.sglang_capture", "SglangCapture", "_prefilled"),
    "the copy to the host": ("capture.device_output", "ForwardOutput", "_with"),
    "the outbox": ("capture.outbox", "Outbox", "add"),
    "a message to the courier": ("capture.device_output", "ForwardOutput", "to_wire"),
    "the hook of pulled requests": ("swap.swap_channel", "SwapChannel", "take"),
    "the handler of swap commands": ("swap.sglang_swap", "RankSwap", "_act_on"),
    "the staging thread": ("swap.sglang_swap", "RankSwap", "_staged_from"),
    "the vote on a commit": ("swap.sglang_swap", "RankSwap", "_staged"),
    "a commit": ("swap.sglang_swap", "RankSwap", "_commit"),
    "the hook of a forward": ("pacing.adaptive_policy", "PacelineAdaptivePolicy", "interrupt"),
    "the clock at the launch of a step": ("clock.step_meter", "StepMeter", "launch"),
    "the clock at the result of a step": ("clock.step_meter", "StepMeter", "verify"),
    "the clock at the end of a request": ("clock.ended_requests", "EndedRequests", "count"),
    "the clock at a prefill": ("clock.step_meter", "StepMeter", "interrupt"),
}
SWAPS = {"the hook of pulled requests", *list(PLANTS)[8:12]}


def plant(name: str, file: Path) -> None:
    """Let one function raise while `file` names it."""
    module, owner, function = PLANTS[name]
    found: Any = importlib.import_module(f"paceline.serving.{module}")
    found = getattr(found, owner)
    body: Callable[..., Any] = getattr(found, function)

    def planted(*arguments: Any, **named: Any) -> Any:
        if file.exists() and file.read_text(encoding="utf-8") == name:
            file.with_suffix(".hit").touch()
            raise RuntimeError(f"planted in {name}")
        return body(*arguments, **named)

    setattr(found, function, planted)


def main() -> int:
    if PLANT_FILE in os.environ:  # the second time around: SGLang's own main, and this file stays the main module
        runpy.run_module("sglang.launch_server", run_name="__main__")
        return 0
    from paceline.serving.launch.server import launch_plan, run_server

    file, *flags = sys.argv[1:]
    plan = launch_plan(flags, os.environ)
    argv = (sys.executable, __file__, *plan.argv[3:])  # without `python -m sglang.launch_server`
    return run_server(replace(plan, argv=argv, env={**plan.env, PLANT_FILE: file}))


def arm_the_scheduler(file: Path) -> None:
    """Stage 2 of the plugin runs in the scheduler process alone."""
    install = plugin._install

    def armed(*arguments: Any, **named: Any) -> None:
        for name in PLANTS:
            plant(name, file)
        install(*arguments, **named)

    breaker.MAX_FAULTS = 10**6
    plugin._install = armed


if PLANT_FILE in os.environ:
    arm_the_scheduler(Path(os.environ[PLANT_FILE]))

if __name__ == "__main__":
    sys.exit(main())
