"""The event stream of the live page: what a tab is told, what is read for it, and what it hears while Redis is away."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass, field

from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_members import speculators
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable
from paceline.buffer.redis_client import connect
from paceline.dashboards.window.event_stream import event_id, events, view_number
from paceline.dashboards.window.panel_log import EVERY_S, MAX_LOGS, PanelLogs
from paceline.dashboards.window.panels import PANELS, Asked
from paceline.dashboards.window.readings import READ_EVERY_S, Readings
from twins.memory_board import MemoryVersionBoard
from window_story import Story, code_then_prose


@dataclass
class Counting:
    """A board that counts how often it is read, and may be away."""

    board: MemoryVersionBoard
    reads: int = 0
    is_away: bool = False

    def __getattr__(self, name: str):
        if self.is_away:
            raise BufferUnavailable("Redis at redis://localhost: gone; start Redis")
        self.reads += name == "read"
        return getattr(self.board, name)


@dataclass
class Tabs:
    """Readings on a clock that the story's pauses move."""

    story: Story
    now: float = 0.0
    names: list[str] = field(default_factory=lambda: ["demo"])

    def __post_init__(self) -> None:
        self.board = Counting(self.story.board)
        self.readings = Readings(
            list_names=lambda: list(self.names), open_board=lambda _: self.board, clock=lambda: self.now
        )
        self.logs = PanelLogs()

    async def pause(self, seconds: float) -> None:
        self.now += seconds

    async def hear(self, count: int, last_id: str = "", speculator: str = "", between=lambda: None):
        """The first `count` events as (event, id, data)."""
        found = []
        async with aclosing(
            events(self.readings, self.logs, speculator=speculator, asked=Asked(), last_id=last_id, pause=self.pause)
        ) as stream:
            async for event in stream:
                found.append((event.event, event.id, json.loads(event.raw_data)))
                if len(found) == count:
                    break
                between()
        return found


def test_the_first_event_has_every_panel_and_the_next_one_what_changed():
    tabs = Tabs(code_then_prose())

    def work():
        tabs.story.now += 20.0
        tabs.story.beat()

    first, second = asyncio.run(tabs.hear(2, between=work))
    assert (first[0], tuple(first[2]["panels"]), first[2]["speculators"]) == ("panels", PANELS, ["demo"])
    assert "headline" in second[2]["panels"]  # ages grow
    assert "lane" not in second[2]["panels"]  # no draft came or went
    assert first[1] != second[1]


def test_a_tab_that_comes_back_gets_what_changed_since_its_last_event():
    tabs = Tabs(code_then_prose())
    ((_, last_id, _),) = asyncio.run(tabs.hear(1))
    tabs.now += 60.0
    tabs.story.board.roll_back("operator:ann", "worse")
    ((_, _, told),) = asyncio.run(tabs.hear(1, last_id))
    assert "lane" in told["panels"]
    assert "positions" in told["panels"]
    assert "members" not in told["panels"]
    assert view_number(last_id) == 1


def test_an_id_of_another_process_or_of_nobody_counts_for_nothing():
    assert view_number(event_id(7)) == 7
    assert [view_number(text) for text in ("", "00000000-7", event_id(7) + "x", "7", event_id(10**20))] == [0] * 5
    tabs = Tabs(code_then_prose())
    ((_, _, told),) = asyncio.run(tabs.hear(1, "00000000-7"))
    assert tuple(told["panels"]) == PANELS


def test_many_tabs_share_one_reading_per_second():
    tabs = Tabs(code_then_prose())

    async def look_on():
        for _ in range(3):
            views = await asyncio.gather(*(tabs.readings.current("demo") for _ in range(20)))
            assert len({id(view) for view in views}) == 1
            tabs.now += READ_EVERY_S

    asyncio.run(look_on())
    assert tabs.board.reads == 3


def test_an_act_from_the_page_is_seen_at_once():
    tabs = Tabs(code_then_prose())

    async def look():
        return await tabs.readings.current("demo")

    before = asyncio.run(look())
    tabs.story.board.roll_back("operator:ann", "worse")
    assert asyncio.run(look()) is before
    tabs.readings.forget()
    assert asyncio.run(look()).look.seen.state.live == 3


def test_while_the_board_is_away_a_tab_hears_so_with_the_time_and_gets_all_when_it_is_back():
    tabs = Tabs(code_then_prose(), now=100.0)

    def switch():
        tabs.board.is_away = 100.0 <= tabs.now < 102.0

    told = asyncio.run(tabs.hear(4, between=switch))
    assert [event for event, _, _ in told] == ["panels", "trouble", "trouble", "panels"]
    assert {told[place][2]["since"] for place in (1, 2)} == {100.0}
    assert "start Redis" in told[1][2]["message"]
    assert told[1][1] is None
    assert tuple(told[3][2]["panels"]) == PANELS


def test_before_there_is_a_speculator_and_for_an_unknown_one_a_tab_hears_why():
    tabs = Tabs(code_then_prose(), names=[])
    told = asyncio.run(tabs.hear(2, between=lambda: tabs.names.append("demo")))
    assert [event for event, _, _ in told] == ["trouble", "panels"]
    assert told[0][2]["message"].startswith("no speculator is known yet")
    ((event, _, said),) = asyncio.run(tabs.hear(1, speculator="other"))
    assert (event, said["message"]) == ("trouble", "speculator: got 'other', expected one of ['demo']")


def test_a_redis_that_dies_and_comes_back_is_trouble_and_then_a_board_again(own_redis):
    client = connect(own_redis.url)
    board = RedisVersionBoard(client, BufferConfig(speculator="demo"))
    board.beat("replica:a", MemberStatus(draft_version=0), 60.0)
    readings = Readings(
        list_names=lambda: speculators(client), open_board=lambda _: board, clock=iter(range(1000)).__next__
    )

    async def look():
        return await readings.names(), await readings.current("demo")

    names, view = asyncio.run(look())
    assert (names, list(view.look.seen.members)) == (["demo"], ["replica:a"])
    own_redis.stop()
    names, view = asyncio.run(look())
    assert (names, view.look) == (["demo"], None)
    assert "start Redis" in view.trouble
    own_redis.start("--appendonly", "yes", "--appendfsync", "always")
    names, view = asyncio.run(look())
    assert list(view.look.seen.members) == ["replica:a"]
    client.close()


def test_only_so_many_choices_are_remembered():
    tabs = Tabs(code_then_prose())
    view = asyncio.run(tabs.readings.current("demo"))
    logs = PanelLogs()
    first = logs.updated("demo", Asked(draft=0), view)
    for number in range(1, MAX_LOGS + 1):
        logs._logs[("other", Asked(draft=number))] = first
    logs.updated("demo", Asked(draft=1), view)
    assert ("demo", Asked(draft=0)) not in logs._logs
    assert len(logs._logs) == MAX_LOGS


def test_what_reads_whole_histories_is_made_every_few_seconds_and_when_the_board_changes():
    tabs = Tabs(code_then_prose())
    seen = []

    def work():
        tabs.story.now += 5.0
        tabs.story.serve("prose", 1.0)
        tabs.story.beat()
        if len(seen) == 8:
            tabs.story.board.roll_back("operator:ann", "worse")
        seen.append(tabs.now)

    told = asyncio.run(tabs.hear(11, between=work))
    made = {name: [place for place, (_, _, data) in enumerate(told) if name in data["panels"]] for name in EVERY_S}
    assert made["accept"] == [0, 5, 9]
    assert made["why"] == [0, 9]


def test_a_server_that_falls_silent_is_explained_no_longer_at_once():
    tabs = Tabs(code_then_prose())

    def work():
        tabs.story.now += 6.0  # a heartbeat lives for ten

    told = asyncio.run(tabs.hear(4, between=work))
    reasons = [data["panels"].get("why", {}).get("why_unknown") for _, _, data in told]
    assert reasons[0] == ""
    assert [reason for reason in reasons[1:] if reason] == ["no server is alive, the last was seen 14 s ago"]
