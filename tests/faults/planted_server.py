"""Exceptions for the hooks of a killable_server.py: while FILE names one of PLANTS, that function raises.

FILE.hit is written then. Any number of faults leaves capture on, so that every hook gets its turn on one server.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.serving import breaker

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
#: Needs a server whose number of draft steps is chosen.
PACED = "the hook of a forward"


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


def plant_all(file: Path) -> None:
    """Plant all of them, in a scheduler process before paceline's plugin is installed."""
    breaker.MAX_FAULTS = 10**6
    for name in PLANTS:
        plant(name, file)
