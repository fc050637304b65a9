"""What drafts served, against sums made by hand from the rounds of every request."""

import math

import numpy as np
import pytest
from paceline.buffer.board.counters import OLDER_DRAFTS, Counters, DraftPositions, ServedCell, ServedCounters
from paceline.policies.readings.ratio_sums import RatioSums
from paceline.policies.readings.served_drafts import ServedDraft, served_drafts


def cell(draft: int, requests: list[tuple[int, int]], label: str = "", kind: str = "greedy") -> ServedCell:
    """Requests of (rounds, accepted), all of them ended."""
    ended = (
        len(requests),
        sum(r for r, _ in requests),
        sum(a for _, a in requests),
        sum(r * r for r, _ in requests),
        sum(r * a for r, a in requests),
        sum(a * a for _, a in requests),
    )
    return ServedCell(draft=draft, label=label, kind=kind, rounds=ended[1], accepted=ended[2], ended=ended)


def counted(at: float, boot: str, cells: list[ServedCell], positions: list[DraftPositions] | None = None) -> Counters:
    return Counters(at=at, boot=boot, served=ServedCounters(cells=cells, positions=positions or []))


def drawn(seed: int, requests: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    return [(int(n), int(rng.integers(0, 3 * n))) for n in rng.integers(5, 40, requests)]


def test_a_draft_has_the_accept_length_and_interval_of_all_its_requests() -> None:
    py, prose, other = drawn(1, 20), drawn(2, 11), drawn(3, 9)
    histories = [
        counted(10.0, "a", [cell(4, py[:5], "py")]),  # grows: the later entry holds these too
        counted(20.0, "a", [cell(4, py, "py"), cell(4, prose, "prose", "sampled"), cell(5, other)]),
        counted(15.0, "b", [cell(4, other)]),
    ]
    found = served_drafts(reversed(histories))
    assert set(found) == {4, 5}
    requests = [*py, *prose, *other]
    rounds, accepted = sum(r for r, _ in requests), sum(a for _, a in requests)
    reading = found[4].accept_length
    assert reading.value == pytest.approx(1.0 + accepted / rounds)
    assert (reading.count, reading.at, reading.why_unknown) == (40, 20.0, "")
    residuals = sum((a - accepted / rounds * r) ** 2 for r, a in requests) * 40 / 39
    error = math.sqrt(residuals) / rounds
    assert (reading.low, reading.high) == pytest.approx(
        (reading.value - 1.959964 * error, reading.value + 1.959964 * error)
    )
    assert found[5].sums == RatioSums.of_row(cell(5, other).ended)


def test_a_draft_that_is_told_apart_no_longer_keeps_what_it_had_and_a_restart_adds() -> None:
    before, after = drawn(4, 10), drawn(5, 12)
    histories = [
        counted(10.0, "a", [cell(1, before)]),
        counted(20.0, "a", [cell(OLDER_DRAFTS, before), cell(9, after)]),
        counted(30.0, "c", [cell(1, after)]),
    ]
    found = served_drafts(histories)
    assert set(found) == {1, 9}
    assert found[1].sums == RatioSums.of_row(cell(1, before + after).ended)


def test_positions_add_up_over_members_and_unequal_depths() -> None:
    histories = [
        counted(1.0, "a", [], [DraftPositions(draft=2, tried=[10, 6], stood=[6, 0])]),
        counted(2.0, "b", [], [DraftPositions(draft=2, tried=[10, 4, 0], stood=[4, 3, 0])]),
    ]
    (served,) = served_drafts(histories).values()
    assert served.by_position == [10 / 20, 3 / 10, None]
    assert served.accept_length.value is None
    assert served.accept_length.why_unknown


def test_buckets_add_up_over_members_and_one_without_rounds_is_unknown() -> None:
    one = DraftPositions(draft=2, output_rounds=[10, 0, 4], output_accepted=[20, 0, 2], context_rounds=[14])
    one.context_accepted = [22]
    other = DraftPositions(draft=2, output_rounds=[30], output_accepted=[31], context_rounds=[10, 20])
    other.context_accepted = [11, 20]
    (served,) = served_drafts([counted(1.0, "a", [], [one]), counted(2.0, "b", [], [other])]).values()
    assert [sums.accept_length for sums in served.by_output] == [1 + 51 / 40, None, 1 + 2 / 4]
    assert [tuple(sums) for sums in served.by_context] == [(24, 33), (20, 20)]


def test_nothing_counted_is_unknown_and_no_error() -> None:
    assert served_drafts([Counters(at=1.0, boot="a")]) == {}
    reading = ServedDraft().accept_length
    assert (reading.value, reading.count, reading.low) == (None, 0, None)
