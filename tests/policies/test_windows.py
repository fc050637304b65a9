"""Readings of a window against an oracle that counts the raw rounds, one by one."""

import math
import random
from dataclasses import dataclass, replace

import pytest
from paceline.buffer.board.counters import (
    CONTEXT_STARTS,
    MAX_DRAFTS,
    OLDER_DRAFTS,
    OTHER_BATCHES,
    OTHER_STEPS,
    OUTPUT_STARTS,
    Counters,
    DraftPositions,
    SchedulerCounters,
    ServedCell,
    ServedCounters,
    StepCell,
    TraceCounters,
)
from paceline.policies.readings import serving_readings as serving
from paceline.policies.readings.definitions import DEFINITIONS
from paceline.policies.readings.loop_readings import traces_captured, traces_dropped
from paceline.policies.readings.ratio_sums import RatioSums
from paceline.policies.readings.tables import PARTS
from paceline.policies.readings.windows import windowed

DRAFTED = 3
STEP_S = 0.25
STARTS = {"output": OUTPUT_STARTS, "context": CONTEXT_STARTS}


@dataclass(frozen=True)
class Round:
    """One verify round as it was served, alone in its batch."""

    at: float
    draft: int
    label: str
    request: int
    accepted: int

    @property
    def output(self) -> int:
        """Where it begins in the answer: every other request has a long one."""
        return 1 + 300 * (self.request % 2) + self.accepted

    @property
    def context(self) -> int:
        """Where it begins in the whole request."""
        return self.output + 500


def life(seed: int, starts_at: float, until: float, every_s: float = STEP_S, drafts: int = 3) -> list[Round]:
    """Rounds of a member from `starts_at` on; a request has 8 of them, and drafts change as time goes on."""
    chance = random.Random(seed)
    count = round((until - starts_at) / every_s)
    return [
        Round(
            starts_at + (place + 0.5) * every_s,
            int(drafts * place / count),
            ("py", "prose")[place // 8 % 2],
            place // 8,
            chance.randrange(DRAFTED + 1),
        )
        for place in range(count)
    ]


def counted(rounds: list[Round], at: float, boot: str, started_at: float | None = None) -> Counters:
    """What a member says at `at` that served `rounds` since its boot: only what came until then counts."""
    past = [each for each in rounds if each.at <= at]
    named = sorted({each.draft for each in past})[-MAX_DRAFTS:]
    past = [each if each.draft in named else replace(each, draft=OLDER_DRAFTS) for each in past]
    cells = [
        ServedCell(draft=draft, label=label, kind="greedy", **sums([r for r in past if (r.draft, r.label) == pair]))
        for pair in sorted({(each.draft, each.label) for each in past})
        for draft, label in [pair]
    ]
    positions = [
        DraftPositions(
            draft=draft,
            tried=[sum(r.accepted >= p for r in past if r.draft == draft) for p in range(DRAFTED)],
            stood=[sum(r.accepted > p for r in past if r.draft == draft) for p in range(DRAFTED)],
            **by_start([r for r in past if r.draft == draft]),
        )
        for draft in sorted({each.draft for each in past})
    ]
    tokens = sum(each.accepted + 1 for each in past)
    step = StepCell(
        bucket=1,
        draft_steps=DRAFTED,
        steps=len(past),
        seconds=len(past) * STEP_S / 2,
        tokens=tokens,
        requests=len(past),
    )
    return Counters(
        at=at,
        boot=boot,
        started_at=started_at,
        served=ServedCounters(cells=cells, positions=positions),
        scheduler=SchedulerCounters(steps=[step], rounds=len(past), accepted=tokens - len(past)),
        traces=TraceCounters(captured=len(past), delivered=len(past), dropped={"full": len(past) // 10}),
    )


def by_start(rounds: list[Round]) -> dict:
    """Fields of DraftPositions."""
    found = {}
    for name, starts in STARTS.items():
        buckets = [[] for _ in starts]
        for each in rounds:
            buckets[bucket(starts, getattr(each, name))].append(each.accepted)
        found[f"{name}_rounds"] = [len(each) for each in buckets]
        found[f"{name}_accepted"] = [sum(each) for each in buckets]
    return found


def bucket(starts: tuple[int, ...], length: int) -> int:
    return max(place for place, start in enumerate(starts) if length >= start)


def sums(rounds: list[Round]) -> dict:
    """Fields of a cell; a stretch ends with the eighth round of its request."""
    stretches = {}
    for each in rounds:
        stretches.setdefault((each.request, each.draft), []).append(each.accepted)
    ended = [RatioSums.of(len(accepted), sum(accepted)) for accepted in stretches.values() if len(accepted) == 8]
    whole = sum(ended, RatioSums())
    fields = (whole.requests, whole.rounds, whole.accepted)
    squares = (whole.rounds_squared, whole.rounds_accepted, whole.accepted_squared)
    return {"rounds": len(rounds), "accepted": sum(r.accepted for r in rounds), "ended": (*fields, *squares)}


def history(rounds: list[Round], boot: str, ticks: range, started_at: float | None = None) -> list[Counters]:
    return [counted(rounds, float(at), boot, started_at) for at in ticks]


def length(rounds: list[Round]) -> float:
    return 1 + sum(each.accepted for each in rounds) / len(rounds)


def between(rounds: list[Round], since: float, until: float) -> list[Round]:
    return [each for each in rounds if since < each.at <= until]


def test_a_window_counts_what_came_in_between_over_all_members() -> None:
    first, second = life(1, 0, 300), life(2, 0, 300)
    histories = {"a": history(first, "x", range(0, 301, 5)), "b": history(second, "y", range(0, 301, 5))}
    window = windowed(histories, 100.0, 200.0)
    inside = between(first, 100, 200) + between(second, 100, 200)
    assert serving.accept_length(window).value == pytest.approx(length(inside))
    by_draft = serving.accept_length_by_draft(window)
    expected = {draft: length([r for r in inside if r.draft == draft]) for draft in {r.draft for r in inside}}
    assert {draft: each.value for draft, each in by_draft.items()} == pytest.approx(expected)
    by_label = serving.accept_length_by_label(window)
    expected = {label: length([r for r in inside if r.label == label]) for label in ("py", "prose")}
    assert {label: each.value for label, each in by_label.items()} == pytest.approx(expected)
    assert [*serving.accept_length_by_kind(window)] == ["greedy"]
    tried = [sum(r.accepted >= p for r in inside) for p in range(DRAFTED)]
    stood = [sum(r.accepted > p for r in inside) for p in range(DRAFTED)]
    found = serving.position_acceptance(window)
    assert [each.value for each in found] == pytest.approx([s / t for s, t in zip(stood, tried, strict=True)])
    assert [each.count for each in found] == tried
    for name, readings in (
        ("output", serving.output_accept_length(window)),
        ("context", serving.context_accept_length(window)),
    ):
        assert len(readings) == len(STARTS[name])
        for place, reading in enumerate(readings):
            mine = [r for r in inside if bucket(STARTS[name], getattr(r, name)) == place]
            assert reading.value == (pytest.approx(length(mine)) if mine else None)
            assert reading.count == len(mine)
            assert reading.why_unknown == ("" if mine else "no verify round began there in the window")
        assert sum(reading.value is not None for reading in readings) == 2
    assert serving.tokens_per_second(window).value == pytest.approx(sum(r.accepted + 1 for r in inside) / 100.0)
    assert traces_captured(window).value == len(inside)


def test_the_interval_is_that_of_the_requests_that_ended() -> None:
    rounds = life(3, 0, 300, drafts=1)
    window = windowed({"a": history(rounds, "x", range(0, 301, 5))}, 100.0, 200.0)
    # 100 s hold 400 rounds, and 50 requests end in them.
    ended = [r for r in rounds if 100 < max(each.at for each in rounds if each.request == r.request) <= 200]
    by_request = {r.request: [each.accepted for each in rounds if each.request == r.request] for r in ended}
    whole = sum((RatioSums.of(8, sum(accepted)) for accepted in by_request.values()), RatioSums())
    reading = serving.accept_length(window)
    assert reading.count == len(by_request) == 50
    assert reading.high - reading.value == pytest.approx(1.959964 * whole.standard_error)
    assert reading.value - reading.low == pytest.approx(reading.high - reading.value)


@pytest.mark.parametrize("is_told", [False, True], ids=["start unknown", "start told"])
def test_a_restart_inside_the_window_counts_from_nothing(is_told: bool) -> None:
    first, second = life(4, 0, 140), life(5, 150, 300)
    histories = {
        "a": history(first, "x", range(0, 141, 5))
        + history(second, "y", range(155, 301, 5), 150.0 if is_told else None)
    }
    window = windowed(histories, 100.0, 200.0)
    inside = between(first, 100, 140) + between(second, 150, 200)
    assert serving.accept_length(window).value == pytest.approx(length(inside))
    assert serving.served_keys(window)
    assert traces_captured(window).value == len(inside)
    # Without a start, the boot that followed begins where the one before it was last heard of.
    assert window.member_seconds("served") == pytest.approx(90.0 if is_told else 100.0)
    assert window.elapsed_s("served") == pytest.approx(100.0)


def test_several_restarts_in_one_window_all_count() -> None:
    lives = [life(seed, start, start + 18) for seed, start in enumerate((100, 120, 140, 160))]
    entries = [
        counted(rounds, float(at), f"boot {place}", 100.0 + 20 * place)
        for place, rounds in enumerate(lives)
        for at in range(105 + 20 * place, 120 + 20 * place, 5)
    ]
    window = windowed({"a": entries}, 90.0, 180.0)
    # Of each boot its last entry counts: what it served after that nobody heard of.
    inside = [r for place, rounds in enumerate(lives) for r in between(rounds, 100, 115 + 20 * place)]
    assert traces_captured(window).value == len(inside)
    assert serving.accept_length(window).value == pytest.approx(length(inside))


def test_a_member_that_joined_late_counts_from_its_start_where_that_is_known() -> None:
    early, late = life(6, 0, 200), life(7, 150, 200)
    known = {"a": history(early, "x", range(0, 201, 5)), "b": history(late, "y", range(155, 201, 5), 150.0)}
    unknown = {**known, "b": history(late, "y", range(155, 201, 5))}
    inside = between(early, 100, 200)
    assert traces_captured(windowed(known, 100.0, 200.0)).value == len(inside) + len(late)
    # Its first entry may hold an hour's worth: what it says is only what the others begin from.
    assert traces_captured(windowed(unknown, 100.0, 200.0)).value == len(inside) + len(between(late, 155, 200))


def test_drafts_that_are_no_longer_told_apart_keep_what_they_served_in_the_window() -> None:
    rounds = life(8, 0, 300, drafts=14)
    window = windowed({"a": history(rounds, "x", range(0, 301, 5))}, 50.0, 300.0)
    inside = between(rounds, 50, 300)
    total = sum(row.rounds for row in window.table("served", "cells").values())
    assert total == len(inside)
    assert serving.accept_length(window).value == pytest.approx(length(inside))
    found = serving.accept_length_by_draft(window)
    for draft in range(MAX_DRAFTS - 2, 14):
        expected = [r for r in inside if r.draft == draft]
        assert found[draft].value == pytest.approx(length(expected)), draft
    cells = window.table("served", "cells")
    by_draft = {d: sum(row.rounds for key, row in cells.items() if key.draft == d) for d in found}
    # A draft loses its name between two entries; what it served since the first of them is of the older ones.
    assert by_draft.get(OLDER_DRAFTS, 0) <= 2 * 5 / STEP_S


def test_a_label_that_became_rare_is_found_among_the_others() -> None:
    def entry(at: float, **by_label: int) -> Counters:
        names = {"other": "*"}
        cells = [ServedCell(draft=1, label=names.get(k, k), kind="greedy", rounds=n) for k, n in by_label.items()]
        return Counters(at=at, boot="x", served=ServedCounters(cells=cells))

    window = windowed({"a": [entry(0.0, py=10, rare=4, other=6), entry(10.0, py=15, other=13)]}, 0.0, 10.0)
    cells = {key.label: row.rounds for key, row in window.table("served", "cells").items()}
    assert cells == {"py": 5, "*": 3}


def test_cells_that_are_pooled_and_begin_again_are_counted_once() -> None:
    """As a courier folds its cells, which has room for few: labels into those of their draft, then drafts."""

    def entry(at: float, **rounds: int) -> Counters:
        keys = {name: (int(name[-1]) - 1, {"rest": "*"}.get(name[:-1], name[:-1])) for name in rounds}
        cells = [ServedCell(draft=keys[k][0], label=keys[k][1], kind="greedy", rounds=n) for k, n in rounds.items()]
        return Counters(at=at, boot="x", served=ServedCounters(cells=cells))

    # The number at the end of a name is its draft, plus one: rest0 are the older drafts.
    told = [
        entry(0.0, py1=100, prose1=50),
        entry(10.0, py1=110, rest1=60),  # prose is folded into the rest of draft 0
        entry(20.0, py1=115, rest1=60, prose1=5),  # and begins again
        entry(30.0, rest0=190, py2=7),  # draft 0 is folded, after 5 + 3 + 2 more rounds
        entry(40.0, rest0=190, py2=9, py1=1),  # and drafts again
    ]
    window = windowed({"a": told}, 0.0, 40.0)
    total = sum(row.rounds for row in window.table("served", "cells").values())
    assert total == (110 + 60 - 150) + (5 + 5) + (190 - 180 + 7) + (2 + 1)
    # The same over two entries alone, between which a cell was pooled and began again.
    window = windowed({"a": [entry(0.0, py1=100, rest1=20), entry(10.0, py1=5, rest1=125)]}, 0.0, 10.0)
    assert sum(row.rounds for row in window.table("served", "cells").values()) == 5 + 5


def test_steps_that_lose_their_row_are_found_among_the_others() -> None:
    def entry(at: float, *rows: tuple[int, int, int]) -> Counters:
        cells = [StepCell(bucket=b, draft_steps=k, steps=n, seconds=n / 10) for b, k, n in rows]
        return Counters(at=at, boot="x", scheduler=SchedulerCounters(steps=cells))

    others = (OTHER_BATCHES, OTHER_STEPS)
    window = windowed({"a": [entry(0.0, (1, 3, 40), (2, 3, 5)), entry(10.0, (1, 3, 50), (*others, 7))]}, 0.0, 10.0)
    assert {key: row.steps for key, row in window.table("scheduler", "steps").items()} == {(1, 3): 10, others: 2}


def test_what_no_member_counts_is_unknown_and_says_so() -> None:
    window = windowed({"a": [Counters(at=float(at), boot="x") for at in range(0, 60, 5)], "b": []}, 0.0, 60.0)
    assert [window.table(part, "cells") for part in PARTS] == [None] * 4
    for reading in (
        serving.accept_length(window),
        serving.engine_accept_length(window),
        serving.tokens_per_second(window),
        serving.step_time_ms(window),
        serving.running(window),
        serving.decode_share(window),
        traces_captured(window),
    ):
        assert reading.value is None
        assert "sent these counters" in reading.why_unknown
    assert serving.accept_length_by_draft(window) == traces_dropped(window) == {}
    assert serving.position_acceptance(window) == []
    unknown = [*serving.output_accept_length(window), *serving.context_accept_length(window)]
    assert {(each.value, each.why_unknown) for each in unknown} == {
        (None, "no replica sent these counters in the window")
    }


def test_a_part_that_one_member_lacks_is_counted_by_the_others() -> None:
    rounds = life(9, 0, 100)
    old = [Counters(at=float(at), boot="o", traces=TraceCounters(captured=at)) for at in range(0, 101, 5)]
    window = windowed({"a": history(rounds, "x", range(0, 101, 5)), "old": old}, 50.0, 100.0)
    assert serving.accept_length(window).value == pytest.approx(length(between(rounds, 50, 100)))
    assert traces_captured(window).value == len(between(rounds, 50, 100)) + 50


def test_silence_makes_a_reading_unknown_and_idleness_does_not() -> None:
    rounds = life(10, 0, 100)
    quiet = {"a": history(rounds, "x", range(0, 301, 5))}
    window = windowed(quiet, 200.0, 300.0)
    assert serving.tokens_per_second(window).value == 0.0
    assert serving.accept_length(window).why_unknown == "no verify round of a captured request was served in the window"
    assert serving.step_time_ms(window).why_unknown == "no decode step was taken in the window"
    silent = {"a": history(rounds, "x", range(0, 206, 5))}
    reading = serving.tokens_per_second(windowed(silent, 200.0, 300.0))
    assert (reading.value, reading.why_unknown) == (None, "the newest counters are 95 s old")
    assert reading.at == 205.0


def test_one_entry_alone_says_nothing() -> None:
    window = windowed({"a": [counted(life(11, 0, 100), 100.0, "x")]}, 50.0, 100.0)
    assert serving.accept_length(window).value is None


def test_tokens_per_second_are_the_product_of_what_they_come_from() -> None:
    histories = {
        name: history(life(seed, 0, 200, every_s), name, range(0, 201, 5))
        for seed, (name, every_s) in enumerate({"a": 0.25, "b": 0.5}.items())
    }
    window = windowed(histories, 100.0, 200.0)
    of_request = serving.running(window).value * serving.tokens_per_request_step(window).value
    per_step_s = 1000 * of_request / serving.step_time_ms(window).value
    replicas = window.member_seconds("scheduler") / window.elapsed_s("scheduler")
    product = replicas * per_step_s * serving.decode_share(window).value
    assert serving.tokens_per_second(window).value == pytest.approx(product)
    assert replicas == 2.0


def test_drops_are_named() -> None:
    rounds = life(12, 0, 200)
    window = windowed({"a": history(rounds, "x", range(0, 201, 5))}, 100.0, 200.0)
    (dropped,) = traces_dropped(window).values()
    assert dropped.value == 800 // 10 - 400 // 10
    assert dropped.count == 400


def test_requests_that_were_not_captured_count_in_the_engines_length() -> None:
    entries = [
        Counters(
            at=at, boot="x", scheduler=SchedulerCounters(requests_ended=ended, rounds=10 * ended, accepted=13 * ended)
        )
        for at, ended in ((0.0, 4), (10.0, 10))
    ]
    reading = serving.engine_accept_length(windowed({"a": entries}, 0.0, 10.0))
    assert (reading.value, reading.count) == (pytest.approx(2.3), 6)


def test_every_figure_is_defined_once_and_in_full() -> None:
    for name, definition in DEFINITIONS.items():
        assert name == definition.name
        assert all(getattr(definition, field) for field in ("unit", "meaning", "formula", "counted_in", "source"))
        assert definition.meaning.endswith(".")
        assert math.isfinite(definition.max_age_s)
        assert definition.max_age_s > 0
