"""No two living processes have one name, and a name is soon free again; on a board in memory and on Redis alike."""

import pytest
from paceline.buffer.board.member_name import MemberName
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.config import BufferConfig
from paceline.buffer.keys import BOOT, LAST_STATUS, SEEN
from twins.memory_board import MemoryVersionBoard
from waiting import until

WANTED, SECOND, THIRD = "replica:r", "replica:r~2", "replica:r~3"
TTL_S = 60.0


class Memory:
    """A board whose clock a test moves."""

    def __init__(self):
        self.now = 1000.0
        self.board = MemoryVersionBoard(lambda: self.now)

    def expire(self, member):
        self.board._boots.pop(member)

    def date(self, _):
        self.now += 1.0


class Redis:
    """The same in Redis, where beats are dated by hand, a second apart."""

    def __init__(self, client):
        self.client, self.board = client, RedisVersionBoard(client, BufferConfig())
        self.now = self.board.now()

    def expire(self, member):
        self.client.delete(BOOT.name("default", member))

    def date(self, member):
        self.now += 1.0
        self.client.zadd(SEEN.name("default"), {member: round(self.now * 1000)})


@pytest.fixture(params=[Memory, Redis])
def house(request):
    return Memory() if request.param is Memory else Redis(request.getfixturevalue("redis_client"))


class Process:
    """One that wants a name, and beats under the one it has."""

    def __init__(self, house, boot, wanted=WANTED, held=""):
        self.house, self.boot, self.name = house, boot, MemberName(house.board, wanted, boot, held)

    def said(self):
        said = MemberStatus(capture_reason=self.boot)  # stands for its account
        self.name.sign(said)
        return said

    def beat(self, **may):
        """The name; empty: none yet."""
        self.name.take(TTL_S, **may)
        if self.name.held:
            self.house.board.beat(self.name.held, self.said(), TTL_S)
            self.house.date(self.name.held)
            self.kept_its_account = self.name.settle()
        return self.name.held


def counts(house):
    return {
        member: seen.said.capture_reason.removeprefix("counts of ") for member, seen in house.board.members().items()
    }


@pytest.mark.guarantee("one-name-twice")
def test_a_second_living_process_gets_a_name_of_its_own_and_a_third_too(house):
    first, second, third = (Process(house, boot) for boot in "abc")
    assert (first.beat(), second.beat()) == (WANTED, "")  # the first may have died just now
    assert (first.beat(), second.beat()) == (WANTED, SECOND)
    assert (third.beat(), first.beat(), third.beat(), second.beat(), third.beat()) == ("", WANTED, "", SECOND, THIRD)
    assert counts(house) == {WANTED: "a", SECOND: "b", THIRD: "c"}
    signed = [(process.said().boot, process.said().wanted) for process in (first, second)]
    assert signed == [("a", ""), ("b", WANTED)]


@pytest.mark.guarantee("one-name-twice")
def test_a_process_started_again_at_once_waits_until_the_one_before_has_expired_and_has_its_name(house):
    Process(house, "a").beat()
    again = Process(house, "b")
    assert [again.beat() for _ in range(5)] == [""] * 5
    house.expire(WANTED)
    assert again.beat() == WANTED
    assert counts(house) == {WANTED: "b"}


def test_one_that_goes_on_for_another_of_the_same_boot_is_that_member(house):
    first, second = Process(house, "a"), Process(house, "b")
    for process in (first, second, first, second):
        process.beat()
    assert Process(house, "a", held=WANTED).beat() == WANTED
    assert Process(house, "b", held=SECOND).beat() == SECOND
    assert counts(house) == {WANTED: "a", SECOND: "b"}


@pytest.mark.guarantee("one-name-twice")
def test_nobody_hides_that_another_one_died_and_nobody_is_renamed_for_ever(house):
    first, second = Process(house, "a"), Process(house, "b")
    for process in (first, second, first, second):
        process.beat()
    house.expire(WANTED)
    assert second.beat() == SECOND
    assert counts(house) == {WANTED: "a", SECOND: "b"}  # the first one is silent, and whoever looks sees it
    # as it would say itself, or `paceline forget` in its place
    house.board.beat(WANTED, MemberStatus(ended=True), 0.001)
    assert second.beat(may_move=False) == SECOND
    assert second.beat() == WANTED
    assert counts(house) == {WANTED: "b"}  # and nothing silent is left


@pytest.mark.guarantee("one-name-twice")
def test_one_that_takes_the_place_of_a_dead_one_has_its_name_though_a_third_has_another(house):
    first, second = Process(house, "a"), Process(house, "b")
    for process in (first, second, first, second):
        process.beat()
    house.expire(WANTED)
    assert (Process(house, "c").beat(), second.beat()) == (WANTED, SECOND)
    assert counts(house) == {WANTED: "c", SECOND: "b"}


def test_a_status_that_cannot_be_read_keeps_nobody_from_beating(redis_client):
    house = Redis(redis_client)
    first, second = Process(house, "a"), Process(house, "b")
    for process in (first, second, first, second):
        process.beat()
    redis_client.set(LAST_STATUS.name("default", WANTED), b"[1]\x1b")
    assert second.beat() == SECOND


def test_one_that_was_taken_for_dead_gets_another_name_and_is_told_so(house):
    first, second = Process(house, "a"), Process(house, "b")
    first.beat()
    second.beat()
    house.expire(WANTED)
    assert (second.beat(), first.beat()) == (WANTED, SECOND)
    assert (second.kept_its_account, first.kept_its_account) == (True, False)
    assert counts(house) == {WANTED: "b", SECOND: "a"}


def test_a_name_is_free_at_once_after_the_last_beat(house):
    first, second = Process(house, "a"), Process(house, "b")
    first.beat()
    second.name.release()  # it has none
    first.name.release()
    until(lambda: second.beat() == WANTED, "the name")
    assert counts(house) == {WANTED: "b"}


def test_one_that_may_not_wait_has_a_name_at_once(house):
    Process(house, "a").beat()
    assert Process(house, "b").beat(may_wait=False) == SECOND


def test_a_key_of_another_type_holds_no_name(redis_client):
    redis_client.lpush(BOOT.name("default", WANTED), "x")
    assert Process(Redis(redis_client), "a").beat() == WANTED


@pytest.mark.parametrize("wanted", ["replica:R", "replica:r 2", "replica:r~2", 'replica:\u00e9\n"{*}', "replica:r-10"])
def test_names_that_differ_are_two_names_however_little(house, wanted):
    first, other = Process(house, "a"), Process(house, "b", wanted)
    assert (first.beat(), other.beat()) == (WANTED, wanted)
    assert counts(house) == {WANTED: "a", wanted: "b"}
