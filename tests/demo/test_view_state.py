"""What the live view shows, read from the in-memory buffer and board and from the answers so far."""

from fleet import counted, requests, version
from paceline.buffer.board.member_status import MemberStatus, SwapSaid, TracesSaid
from paceline.buffer.config import BufferConfig
from paceline.demo.view_state import CURVE_REQUESTS, curves, read_state
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt
from paceline.rig.reader import SpeculatorReader
from paceline.rig.traffic import Arrival, Served
from twins.memory_board import MemoryVersionBoard
from twins.memory_stream import MemoryTraceBuffer


def served(domain: str, accepted: int, *arrivals: float) -> Served:
    came = tuple(Arrival(at, number) for number, at in enumerate(arrivals, start=1))
    return Served(
        prompt=Prompt("p", domain, (1,)),
        sent_at=0.0,
        arrivals=came,
        output_ids=(1,),
        finish="length",
        tally=Tally(accepted, 10),
        retractions=0,
    )


def test_a_curve_has_a_point_for_every_full_dozen_of_its_domain() -> None:
    py = [served("py", 0)] * CURVE_REQUESTS + [served("py", 10)] * CURVE_REQUESTS + [served("py", 99)]
    mixed = [result for pair in zip(py, [served("prose", 5)] * len(py), strict=True) for result in pair]
    assert curves(mixed) == {"py": [1.0, 2.0], "prose": [1.5, 1.5]}


def test_the_state_counts_what_is_done_and_shows_the_last_stall() -> None:
    board = MemoryVersionBoard()
    swaps = [SwapSaid(number=3, stage_ms=2.0, commit_ms=500.0, running=2, at=12.0)]
    board.beat("replica:r0", MemberStatus(swaps=swaps, traces=TracesSaid(captured=2, delivered=2)), 60.0)
    reader = SpeculatorReader(MemoryTraceBuffer(BufferConfig(speculator="test")), board, "r0", "l0")
    state = read_state(reader, [served("py", 0, 11.0, 12.5)], phase="py", requests_total=40, elapsed_s=3.0)
    assert (state.phase, state.requests_done, state.requests_total, state.elapsed_s) == ("py", 1, 40, 3.0)
    assert (state.live, state.versions, state.swaps, state.stall_ms) == (None, [], 1, 1500.0)
    assert (state.traces.captured, state.traces.delivered) == (2, 2)
    assert state.remaining_s == 3.0 * 39


def test_the_state_shows_what_every_version_served_so_far() -> None:
    board = MemoryVersionBoard()
    for number in range(2):
        board.register(version(number), "learner", "made")
    entry = counted(1.0, requests(0, "py", [(10, 5)] * 9), requests(1, "py", [(10, 12)]))
    board.beat("replica:r0", MemberStatus(counters=entry), 60.0)
    reader = SpeculatorReader(MemoryTraceBuffer(BufferConfig(speculator="test")), board, "r0", "l0")
    state = read_state(reader, [], phase="", requests_total=1, elapsed_s=1.0)
    shown = [(line.served_accept_length, line.rounds, line.requests) for line in state.versions]
    assert shown == [(1.5, 90, 9), (2.2, 10, 1)]
