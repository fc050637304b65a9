"""`paceline explain`, as text and as JSON, of the members' histories."""

import io
import json
import math
from typing import Any

import pytest
from made_histories import Conditions, changed, histories
from paceline.buffer.board.version import BoardState
from paceline.buffer.errors import ConfigError
from paceline.dashboards.explain import as_fields, explained, print_explanation, seconds
from paceline.dashboards.snapshot import Snapshot
from paceline.policies.readings.causes.parts import Cause
from rich.console import Console

BASE = Conditions(labels={"py": 1.0})


def shown(seen: Snapshot, since: str | None = None, draft: int | None = None) -> str:
    out = io.StringIO()
    print_explanation(Console(file=out, width=160), explained(seen, since, draft))
    return out.getvalue()


def fields(seen: Snapshot, since: str | None = None, draft: int | None = None) -> dict[str, Any]:
    return json.loads(json.dumps(as_fields(explained(seen, since, draft))))


def snapshot(now: Conditions, far: float = 1000.0) -> Snapshot:
    """Long under BASE, then a minute under `now`."""
    return Snapshot(
        speculator="s",
        at=far + 60.0,
        state=BoardState(rows={}, live=None, previous=None, last_event_id=""),
        members={},
        histories=histories([(far, BASE), (60.0, now)]),
    )


def test_the_first_lines_answer_and_the_table_has_every_cause() -> None:
    text = shown(snapshot(changed(BASE, labels={"prose": 1.0})))
    assert text.startswith("Slower: a request gets ")
    assert "First cause: labels of the traffic" in text
    assert text.count("below the noise") == len(Cause) - 1
    assert "│ labels of the traffic" in text.partition("causes: their factors multiply")[2]
    assert "speed over plain decoding: unknown, no plain step was ever taken" in text


def test_json_has_the_same_figures_and_they_add_up() -> None:
    seen = snapshot(changed(BASE, prefill=0.4))
    found = fields(seen)
    assert found["causes"][0]["cause"] == "prefill"
    assert found["causes"][0]["factor"] == pytest.approx(0.6 / 0.9, rel=1e-3)
    ratio = found["now"]["replica_tokens_per_second"] / found["before"]["replica_tokens_per_second"]
    assert sum(part["log"] for part in found["parts"]) == pytest.approx(math.log(ratio), abs=1e-9)
    assert sum(cause["log"] for cause in found["causes"]) == pytest.approx(
        found["replica_tokens_per_second"]["log"], abs=1e-9
    )
    assert " ".join(found["answer"]).split() == shown(seen).partition("causes:")[0].split()


def test_plain_decoding_is_compared_with_where_it_was_measured() -> None:
    found = fields(snapshot(changed(BASE, plain=0.2)))
    assert found["before"]["speed_over_plain"] is None
    assert found["now"]["speed_over_plain"] == pytest.approx(2.4, rel=1e-3)  # a plain step takes as long here
    assert "That is 2.40" in found["answer"][0]


def test_another_since_compares_with_another_time() -> None:
    found = fields(snapshot(BASE), since="5m")
    assert found["before"]["ended_at"] - found["before"]["began_at"] == 300.0
    assert (found["before"]["entries"], found["now"]["entries"]) == (60, 12)


def test_a_draft_is_compared_with_the_one_before() -> None:
    text = shown(snapshot(changed(BASE, draft=2, lengths_of={2: 1.2})), draft=2)
    assert text.startswith("Faster: a request gets ")
    assert "while draft 1 served" in text


def test_a_board_without_histories_cannot_tell() -> None:
    seen = Snapshot(speculator="s", at=100.0, state=BoardState(rows={}, live=None, previous=None, last_event_id=""))
    assert explained(seen, None, None).found.request_speed is None
    assert shown(seen).startswith("Why serving is faster or slower cannot be told.")
    assert "running, step time, decode share: unknown, " in shown(seen)


def test_what_members_write_is_no_markup() -> None:
    label = "[red]x\x1b[2J"
    now = changed(BASE, labels={label: 1.0}, lengths={"py": 2.4, label: 1.5})
    assert "[red]x\N{REPLACEMENT CHARACTER}[2J" in shown(snapshot(now))


@pytest.mark.parametrize(("text", "expected"), [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0)])
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["10", "m", "-5m", "0s", "10 m", "1d"])
def test_what_is_no_duration_is_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a duration such as 90s, 10m or 1h"):
        seconds(text)


def test_since_and_draft_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of them"):
        shown(snapshot(BASE), since="5m", draft=2)
