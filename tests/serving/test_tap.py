"""The tap is bounded and remembers whom it lost."""

from dataclasses import dataclass

from paceline.serving.tap import Tap


@dataclass(frozen=True)
class Forward:
    request_ids: tuple[str, ...]
    size_bytes: int = 10

    def steps(self):
        return []


def of(*names):
    return Forward(names)


def names(forwards):
    return [list(forward.request_ids) for forward in forwards]


def test_forwards_come_out_in_order_and_a_full_tap_marks_the_requests_it_lost():
    tap = Tap(max_bytes=20)
    assert [tap.offer(of("a")), tap.offer(of("b", "c")), tap.offer(of("d", "a"))] == [True, True, False]
    forwards, lost = tap.take(wait_s=0.0)
    assert (names(forwards), lost) == ([["a"], ["b", "c"]], {"d", "a"})
    assert tap.take(wait_s=0.0) == ([], set())


def test_what_was_taken_makes_room_again():
    tap = Tap(max_bytes=20)
    taken = []
    for name in "abcdefg":
        assert tap.offer(of(name))
        taken += names(tap.take(0.0)[0])
    assert taken == [[name] for name in "abcdefg"]
    assert not tap.offer(Forward(("huge",), 21))
    assert tap.take(0.0) == ([], {"huge"})


def test_lost_requests_are_told_only_when_their_earlier_steps_are_out():
    tap = Tap(max_bytes=40)
    for name in "abcde":
        tap.offer(of(name))
    first, second = tap.take(0.0, max_forwards=3), tap.take(0.0, max_forwards=3)
    assert (names(first[0]), first[1]) == ([["a"], ["b"], ["c"]], set())
    assert (names(second[0]), second[1]) == ([["d"]], {"e"})
