"""The courier process.

    python -m paceline.serving.courier ENDPOINT PARENT_PID HAS_PREDECESSOR BOOT MEMBER

takes its settings from the environment and ends, after one last turn, when its parent is gone. HAS_PREDECESSOR is
`yes` when a courier of this server has already adopted the counts of the server before it, else `no`. BOOT is of the
server, and MEMBER the name under which a courier of it beat last; empty: none has.
"""

import os
import signal
import sys
from collections.abc import Callable

from ...buffer.board.member_name import MemberName
from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.redis_client import client_for
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...buffer.stream.trace import DraftTrace
from ...policies.canary import CanaryRules
from ...policies.guard import GuardLimits
from .. import config
from ..breaker import Breaker
from ..watch.draft_monitor import DraftMonitor
from ..wire.counts import CaptureCounts
from ..wire.messages import Resume
from .assembler import WindowAssembler
from .courier import Courier
from .receiver import CourierReceiver
from .redis_clock import RedisClock
from .trace_window import TraceWindow, trace_maker


def run_courier(
    settings: config.ServingConfig,
    endpoint: str,
    *,
    has_predecessor: bool,
    boot: str,
    held: str,
    is_orphan: Callable[[], bool],
) -> None:
    """Work until `is_orphan`; blocks. A fault costs traces, each counted. `held`: the name of the courier before."""
    assert settings.redis_url is not None  # noqa: S101 - the plugin starts no courier without it
    counts = CaptureCounts(has_predecessor=has_predecessor)
    breaker = Breaker()
    client = client_for(settings.redis_url, settings.redis_ca)
    board = RedisVersionBoard(client, settings.buffer)
    rules = CanaryRules(max_requests=settings.canary_requests)
    name = MemberName(board, f"replica:{settings.replica}", boot, held)

    def trace_of(window: TraceWindow, finish: str, now: float) -> DraftTrace:
        replica = name.held.removeprefix("replica:") or settings.replica
        return trace_maker(replica, settings.target, settings.quantised_to)(window, finish, now)

    assembler = WindowAssembler(trace_of, counts, settings.trace_tokens, settings.context_tokens)

    def resume(where: Resume) -> None:
        counts.resume(where.counts, where.begun_since)
        assembler.ignore(where.cut_off)

    monitor = DraftMonitor(board, settings.replica, rules, GuardLimits(), alternates=bool(settings.canary_turn_s))
    receiver = CourierReceiver(endpoint, resume)
    courier = Courier(
        receiver,
        settings.teacher,
        assembler=assembler,
        counts=counts,
        breaker=breaker,
        buffer=RedisTraceBuffer(client, settings.buffer),
        board=board,
        name=name,
        backlog_bytes=settings.backlog_bytes,
        monitor=monitor,
        redis_clock=RedisClock(client),
    )
    try:
        courier.run(is_orphan)
    finally:
        receiver.close()


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server; the courier ends when the server has
    endpoint, parent, has_predecessor, boot, held = sys.argv[1:6]
    # The parent's id is an argument because the parent may be gone before this line is reached.
    run_courier(
        config.from_env(),
        endpoint,
        has_predecessor=has_predecessor == "yes",
        boot=boot,
        held=held,
        is_orphan=lambda: os.getppid() != int(parent),
    )


if __name__ == "__main__":
    _main()
