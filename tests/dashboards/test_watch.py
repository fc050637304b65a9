"""Watching: what changes is shown again, a lost Redis takes its place, and Ctrl-C ends it."""

import io
import json

from paceline.buffer.errors import BufferUnavailable
from paceline.dashboards.watch import watch
from rich.console import Console
from rich.text import Text


class Shown:
    def __init__(self, text):
        self.text = text

    def view(self):
        return Text(self.text, style="green")

    def as_json(self):
        return {"text": self.text}


def watched(*looks, as_json=False, is_terminal=False):
    """Each of `looks` is a text, or an error; then Ctrl-C."""
    coming, console = iter(looks), Console(file=io.StringIO(), width=80, force_terminal=is_terminal)

    def look():
        found = next(coming, KeyboardInterrupt())
        if isinstance(found, BaseException):
            raise found
        return Shown(found)

    watch(look, console, as_json=as_json, pause=lambda _: None)
    return console.file.getvalue()


def test_only_what_changed_is_printed_again():
    assert watched("one", "one", "two", "one") == "one\ntwo\none\n"


def test_as_json_every_change_is_one_object():
    lines = watched("a" * 200, "b", BufferUnavailable("gone"), as_json=True).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"text": "a" * 200},
        {"text": "b"},
        {"exit_code": 2, "error": "gone"},
    ]


def test_while_redis_is_away_nothing_else_is_shown_and_then_it_goes_on():
    shown = watched("one", BufferUnavailable("Redis at x: away"), "two").splitlines()
    assert (shown[0], shown[-1]) == ("one", "two")
    assert shown[1].startswith("cannot tell since ")
    assert "Redis at x: away" in " ".join(shown[1:-1])


def test_on_a_terminal_it_is_drawn_in_place():
    shown = watched("one", BufferUnavailable("Redis at x: away"), is_terminal=True)
    assert "\x1b[1A" in shown or "\x1b[2K" in shown
    assert "one" not in shown.rpartition("cannot tell")[2]
