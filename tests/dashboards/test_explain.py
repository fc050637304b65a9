"""`paceline explain`: as text, as JSON, and its exit codes, over a board that holds the members' histories."""

import io
import json
import math

import pytest
from made_histories import Conditions, changed, histories
from paceline.buffer.counters import Counters
from paceline.buffer.errors import ConfigError
from paceline.buffer.version import BoardState
from paceline.dashboards.explain import seconds, show_explanation
from rich.console import Console

BASE = Conditions(labels={"py": 1.0})


class HistoryBoard:
    """As much of a board as `explain` reads: histories at a time of their own."""

    def __init__(self, found: dict[str, list[Counters]], now_s: float) -> None:
        self._found, self._now_s = found, now_s

    def read(self) -> BoardState:
        return BoardState({}, None, None, "")

    def members(self) -> dict[str, object]:
        return dict.fromkeys(self._found)

    def history(self, member: str, since_s: float = 0.0) -> list[Counters]:
        return [counters for counters in self._found[member] if counters.at >= since_s]

    def now(self) -> float:
        return self._now_s


def shown(board: HistoryBoard, **how: object) -> tuple[int, str]:
    """Exit code and output."""
    out = io.StringIO()
    options = {"since": None, "draft": None, "as_json": False} | how
    code = show_explanation(board, Console(file=out, width=160), **options)
    return code, out.getvalue()


def board(now: Conditions, *, far: float = 1000.0) -> HistoryBoard:
    """Long under BASE, then a minute under `now`."""
    return HistoryBoard(histories([(far, BASE), (60.0, now)]), far + 60.0)


def test_the_first_lines_answer_and_the_table_has_every_cause() -> None:
    code, text = shown(board(changed(BASE, labels={"prose": 1.0})))
    assert code == 0
    assert text.startswith("Slower: a request gets ")
    assert "First cause: labels of the traffic" in text
    assert text.count("below the noise") >= 10
    assert "│ labels of the traffic" in text.partition("causes: their factors multiply")[2]


def test_json_has_the_same_figures_and_they_add_up() -> None:
    code, text = shown(board(changed(BASE, prefill=0.4)), as_json=True)
    fields = json.loads(text)
    assert (code, fields["causes"][0]["cause"]) == (0, "prefill")
    assert fields["causes"][0]["factor"] == pytest.approx(0.6 / 0.9, rel=1e-3)
    ratio = fields["now"]["tokens_per_second"] / fields["before"]["tokens_per_second"]
    assert sum(part["log"] for part in fields["parts"]) == pytest.approx(math.log(ratio))
    assert sum(cause["log"] for cause in fields["causes"]) == pytest.approx(fields["tokens_per_second"]["log"])
    assert fields["answer"][0] in shown(board(changed(BASE, prefill=0.4)))[1].replace("\n", " ")


def test_another_since_compares_with_another_time() -> None:
    fields = json.loads(shown(board(BASE), since="5m", as_json=True)[1])
    assert fields["before"]["ended_at"] - fields["before"]["began_at"] == 300.0
    assert (fields["before"]["entries"], fields["now"]["entries"]) == (60, 12)


def test_a_draft_is_compared_with_the_one_before() -> None:
    _, text = shown(board(changed(BASE, draft=2, lengths_of={2: 1.2})), draft=2)
    assert text.startswith("Faster: a request gets ")
    assert "while draft 1 served" in text


def test_a_board_without_histories_cannot_tell() -> None:
    code, text = shown(HistoryBoard({}, 100.0))
    assert code == 2
    assert text.startswith("Why serving is faster or slower cannot be told.")
    assert "requests at a time" in text


def test_what_members_write_is_no_markup() -> None:
    label = "[red]x\x1b[2J"
    now = changed(BASE, labels={label: 1.0}, lengths={"py": 2.4, label: 1.5})
    _, text = shown(board(now))
    assert "[red]x\N{REPLACEMENT CHARACTER}[2J" in text


@pytest.mark.parametrize(("text", "expected"), [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0)])
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["10", "m", "-5m", "0s", "10 m", "1d"])
def test_what_is_no_duration_is_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a duration such as 90s, 10m or 1h"):
        seconds(text)


def test_since_and_draft_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of them"):
        shown(board(BASE), since="5m", draft=2)
