"""What paceline's hooks take of SGLang's scheduler thread, timed inside the server.

A folder on the server's PYTHONPATH holds a second SGLang plugin, which wraps the hook bodies before paceline builds
them. A line of sums per hook is appended to a file about twice a second.
"""

import functools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...serving.capture.device_output import ForwardOutput
from ...serving.capture.outbox import Outbox
from ...serving.capture.sglang_capture import SglangCapture
from ...serving.clock.step_clock import StepClock
from ...serving.swap.sglang_swap import RankSwap

#: Methods by class. A hook that calls another of these includes it.
TIMED: Mapping[type, tuple[str, ...]] = {
    SglangCapture: ("_after_verify", "_before_draft_prefill", "_after_prefill", "_offer"),
    ForwardOutput: ("copy_to_host",),
    Outbox: ("_flush",),
    StepClock: ("before_forward", "after_activate", "before_resolve", "before_stream", "after_prefill"),
    RankSwap: ("after_pull",),
}
_WRITE_NS = 500_000_000
#: Calls, nanoseconds, and the longest of them, by hook.
Sums = dict[str, list[int]]


def probe_folder(folder: Path, times: Path) -> Path:
    """Make the folder for PYTHONPATH, and return it; the scheduler appends its sums to `times`."""
    about = folder / "hook_times-0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hook-times\nVersion: 0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\npaceline_hook_times = hook_times_probe:register\n", encoding="utf-8"
    )
    call = f"from {__name__} import time_hooks\n\n\ndef register():\n    time_hooks({str(times)!r})\n"
    (folder / "hook_times_probe.py").write_text(call, encoding="utf-8")
    return folder


def time_hooks(path: str) -> None:
    """Wrap the hooks in this process; only the scheduler's will be called."""
    sums: Sums = {}
    write = _writer(Path(path), sums)
    for cls, names in TIMED.items():
        for name in names:
            setattr(cls, name, _timed(getattr(cls, name), sums.setdefault(f"{cls.__name__}.{name}", [0, 0, 0]), write))


def read_sums(path: Path) -> Sums:
    """The sums written last; empty before the first."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found: Sums = json.loads(lines[-1]) if lines else {}
    return found


def _timed(hook: Callable[..., Any], cell: list[int], write: Callable[[int], None]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def run(*arguments: Any, **named: Any) -> Any:
        began_ns = time.perf_counter_ns()
        try:
            return hook(*arguments, **named)
        finally:
            ended_ns = time.perf_counter_ns()
            took_ns = ended_ns - began_ns
            cell[0] += 1
            cell[1] += took_ns
            cell[2] = max(cell[2], took_ns)
            write(ended_ns)

    return run


def _writer(path: Path, sums: Sums) -> Callable[[int], None]:
    due_ns = 0

    def write(now_ns: int) -> None:
        nonlocal due_ns
        if now_ns >= due_ns:
            due_ns = now_ns + _WRITE_NS
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(sums) + "\n")

    return write
