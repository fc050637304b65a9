"""Turns of several servers: what an answer keeps, and what is compared."""

import random
from contextlib import contextmanager

import pytest
from paceline.buffer.errors import PacelineError
from paceline.demo.speed import FIRST, LAST, PLAIN, over_plain, speed_table
from paceline.policies.acceptance import Tally
from paceline.rig.prompts import Prompt
from paceline.rig.speed import turn as turns_module
from paceline.rig.speed.arm import Arm, ArmServer
from paceline.rig.speed.turn import Answer, Turn, different, take_turn, take_turns
from paceline.rig.traffic import Arrival, Served

PROMPTS = [Prompt(f"p-{n}", "own", (n, n + 1)) for n in range(3)]


class UpService:
    def ensure_running(self) -> None:
        return None


def server(name: str) -> ArmServer:
    return ArmServer(Arm(name, None), UpService(), "http://127.0.0.1:1")


def served(prompt: Prompt, *, tokens: int = 4, failure: str = "") -> Served:
    """Sent at 100, chunks of one and three tokens, and one without a new token."""
    arrivals = (Arrival(100.5, 1), Arrival(101.0, tokens), Arrival(101.5, tokens))
    return Served(
        prompt=prompt,
        sent_at=100.0,
        arrivals=arrivals,
        output_ids=tuple(range(tokens)),
        finish="length",
        tally=Tally(2, 2),
        retractions=0,
        failure=failure,
    )


@pytest.fixture
def asked(monkeypatch):
    """What was sent; answered in the reverse order."""
    seen = []

    async def send(url, prompts, *, concurrency, max_tokens):
        seen.append((url, concurrency, [prompt.request_id for prompt in prompts]))
        return [served(prompt) for prompt in reversed(prompts)]

    monkeypatch.setattr(turns_module, "send", send)
    monkeypatch.setattr(turns_module.time, "time", lambda: 100.0)
    monkeypatch.setattr(turns_module.time, "sleep", lambda _: None)
    return seen


def test_a_turn_holds_the_answers_in_the_order_of_the_prompts(asked):
    turn = take_turn(server("plain"), PROMPTS, concurrency=2, max_tokens=4, label="once")
    assert asked == [("http://127.0.0.1:1", 2, ["once-p-0", "once-p-1", "once-p-2"])]
    assert [answer.request for answer in turn.answers] == ["p-0", "p-1", "p-2"]
    assert turn.answers[0] == Answer(
        request="p-0", sent_ms=0.0, arrivals=((500.0, 1), (1000.0, 4)), output_ids=(0, 1, 2, 3), accepted=2, rounds=2
    )
    assert (turn.tokens, turn.seconds, turn.tally) == (12, 1.0, Tally(6, 6))


@pytest.mark.parametrize("answer", [{"tokens": 3}, {"failure": "gone"}])
def test_a_missing_or_short_answer_is_no_figure(answer, monkeypatch):
    async def send(url, prompts, **_):
        return [served(prompt, **answer) for prompt in prompts]

    monkeypatch.setattr(turns_module, "send", send)
    with pytest.raises(PacelineError, match="expected 4 tokens"):
        take_turn(server("plain"), PROMPTS, concurrency=1, max_tokens=4, label="once")


def test_every_server_has_one_turn_in_a_drawn_order(asked):
    servers = {name: server(name) for name in ("a", "b", "c", "d")}
    running = []
    beside_of = []

    @contextmanager
    def beside(name):
        running.append(name)
        yield
        running.remove(name)

    def ask(one):
        beside_of.append((one.arm.name, tuple(running)))
        return take_turn(one, PROMPTS, concurrency=1, max_tokens=4, label="once")

    draw = random.Random(3)
    orders = [[turn.arm for turn in take_turns(servers, ask, draw, beside)] for _ in range(6)]
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert all(alone == (name,) for name, alone in beside_of)


def block(rates, ids):
    """A turn of an arm at so many tokens per second, two answers of four tokens."""
    return [
        Turn(
            arm,
            1,
            0.0,
            tuple(
                Answer(
                    request=f"r{n}", sent_ms=0.0, arrivals=((8e3 / rate, 4),), output_ids=ids[arm], accepted=1, rounds=2
                )
                for n in range(2)
            ),
        )
        for arm, rate in rates.items()
    ]


def test_answers_are_compared_with_those_of_the_reference():
    same = dict.fromkeys((PLAIN, FIRST, LAST), (1, 2, 3, 4))
    rates = {FIRST: 10.0, PLAIN: 20.0, LAST: 40.0}
    assert different(block(rates, same), PLAIN) == []
    assert different(block(rates, same | {LAST: (1, 2, 3, 5)}), PLAIN) == ["last-draft r0", "last-draft r1"]


def test_the_demos_ratio_is_over_the_server_without_a_draft():
    same = dict.fromkeys((PLAIN, FIRST, LAST), (1, 2, 3, 4))
    blocks = [block({LAST: 4 * pace, PLAIN: 2 * pace, FIRST: pace}, same) for pace in (5.0, 9.0)]
    assert over_plain(blocks, LAST).mean == pytest.approx(2.0)
    assert over_plain(blocks, FIRST).mean == pytest.approx(0.5)
    assert list(speed_table(blocks).columns[3].cells) == ["0 of 4"] * 3
