"""What captured requests were served, counted again from a list of their rounds by hand."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.buffer.board.counters import LENGTH_EDGES, MAX_DRAFTS, MAX_LABELS, OLDER_DRAFTS
from paceline.buffer.board.version import OTHER_LABELS
from paceline.buffer.stream.trace import TreeShape
from paceline.serving.watch import served_counts
from paceline.serving.watch.served_cells import MAX_CELLS
from paceline.serving.watch.served_counts import MAX_SHOWN_CHARS, ServedCounts
from served_rounds import KINDS, prefill, verify


@dataclass
class Served:
    """One request as a list of rounds (draft, accepted, drafted), and whether it ended."""

    label: str = ""
    kind: str = "greedy"
    rounds: list = field(default_factory=list)
    is_over: bool = True

    def forwards(self, name):
        made = [prefill(name, self.label, self.kind)]
        made += [verify(name, *one) for one in self.rounds]
        return [*made, verify(name, 0, 0, finish="stop", tokens=())] if self.is_over else made

    def stretches(self):
        """Rounds with one draft in a row."""
        found = []
        for draft, accepted, _ in self.rounds:
            if not found or found[-1][0] != draft:
                found.append([draft, 0, 0])
            found[-1][1] += 1
            found[-1][2] += accepted
        return found if self.is_over else found[:-1]


def counted(served, interleaved=True):
    counts = ServedCounts()
    lines = [request.forwards(f"r{i}") for i, request in enumerate(served)]
    while any(lines):
        for line in lines:
            for _ in range(1 if interleaved else len(line)):
                if line:
                    counts.add(line.pop(0))
    return counts.counters()


def cells_of(counters):
    return {(c.draft, c.label, c.kind): (c.rounds, c.accepted, tuple(c.ended)) for c in counters.cells}


def oracle_cells(served):
    """Cell by cell, nothing folded."""
    live, ended = Counter(), {}
    for request in served:
        for draft, accepted, _ in request.rounds:
            live[draft, request.label, request.kind, "rounds"] += 1
            live[draft, request.label, request.kind, "accepted"] += accepted
        for draft, r, a in request.stretches():
            sums = ended.setdefault((draft, request.label, request.kind), [0] * 6)
            for i, value in enumerate((1, r, a, r * r, r * a, a * a)):
                sums[i] += value
    keys = {key[:3] for key in live}
    return {key: (live[*key, "rounds"], live[*key, "accepted"], tuple(ended.get(key, [0] * 6))) for key in keys}


def oracle_positions(served):
    tried, stood = Counter(), Counter()
    for request in served:
        for draft, accepted, drafted in request.rounds:
            for position in range(drafted):
                tried[draft, position] += all(earlier < accepted for earlier in range(position))
                stood[draft, position] += position < accepted
    return tried, stood


def oracle_lengths(served):
    found = [0] * (len(LENGTH_EDGES) + 1)
    for request in served:
        if request.is_over and request.rounds:
            length = 1 + sum(accepted for _, accepted, _ in request.rounds) / len(request.rounds)
            found[sum(length > edge for edge in LENGTH_EDGES)] += 1
    return found


ROUNDS = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 5)).map(lambda r: (r[0], min(r[1], r[2]), r[2]))
#: With four drafts no more cells than there is room for, so that nothing is folded.
GROUPS = st.sampled_from([("", "greedy"), ("py", "greedy"), ("py", "sampled"), ("chat/de", "edited")])
REQUESTS = st.builds(
    lambda group, rounds, is_over: Served(*group, rounds, is_over),
    GROUPS,
    st.lists(ROUNDS, max_size=6),
    st.booleans(),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(REQUESTS, max_size=8), st.booleans())
def test_every_round_is_in_one_cell_and_every_stretch_in_its_sums(served, interleaved):
    found = counted(served, interleaved)
    assert cells_of(found) == oracle_cells(served)
    tried, stood = oracle_positions(served)
    assert sum(map(len, (row.tried for row in found.positions))) >= len(tried)
    for row in found.positions:
        assert row.tried == [tried[row.draft, i] for i in range(len(row.tried))]
        assert row.stood == [stood[row.draft, i] for i in range(len(row.stood))]
    assert found.request_lengths == oracle_lengths(served)
    assert (found.forgotten, found.unattributed) == (0, 0)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.builds(
            Served,
            st.integers(0, 30).map("label-{}".format),
            st.sampled_from(sorted(KINDS)),
            st.lists(st.tuples(st.integers(0, 14), st.just(1), st.just(2)), min_size=1, max_size=4),
        ),
        min_size=40,
        max_size=90,
    )
)
def test_whatever_is_folded_for_want_of_room_sums_stay_and_drafts_told_apart_keep_theirs(served):
    found = counted(served, interleaved=False)
    assert len(found.cells) <= MAX_CELLS
    assert len({cell.draft for cell in found.cells} - {OLDER_DRAFTS}) <= MAX_DRAFTS
    assert len({cell.label for cell in found.cells} - {OTHER_LABELS}) <= MAX_LABELS
    wanted = oracle_cells(served)
    assert total(cells_of(found)) == total(wanted)
    assert sum(map(sum, (row.tried for row in found.positions))) == sum(oracle_positions(served)[0].values())


def total(cells):
    rows = [(rounds, accepted, *ended) for rounds, accepted, ended in cells.values()]
    return tuple(map(sum, zip(*rows, strict=True)))


def test_a_draft_that_is_told_apart_has_all_its_rounds_though_labels_give_way_to_newer_ones():
    served = [Served(f"label-{i % 9}", "greedy", [(draft, 1, 3)] * (i + 1)) for draft in range(12) for i in range(9)]
    found = counted(served, interleaved=False)
    by_draft, wanted = Counter(), Counter()
    for cell in found.cells:
        by_draft[cell.draft] += cell.rounds
    for request in served:
        wanted[request.rounds[0][0]] += len(request.rounds)
    assert by_draft[OLDER_DRAFTS] == sum(wanted[draft] for draft in range(4))
    assert {draft: by_draft[draft] for draft in range(4, 12)} == {draft: wanted[draft] for draft in range(4, 12)}
    newest = {cell.label: cell.rounds for cell in found.cells if cell.draft == 11}
    assert newest == {f"label-{i}": i + 1 for i in range(9)}  # the draft that serves now keeps every label


def test_a_label_keeps_its_cell_and_one_that_comes_too_late_gets_none():
    served = [Served(f"label-{i}", "greedy", [(1, 0, 3)]) for i in range(MAX_LABELS)]
    served += [Served("late", "greedy", [(1, 2, 3)] * 50)]
    cells = cells_of(counted(served, interleaved=False))
    assert set(cells) == {(1, f"label-{i}", "greedy") for i in range(MAX_LABELS)} | {(1, OTHER_LABELS, "greedy")}
    assert cells[1, OTHER_LABELS, "greedy"][:2] == (50, 100)


def test_a_draft_that_is_returned_to_is_told_apart_again():
    served = [Served("", "greedy", [(draft, 0, 3)]) for draft in [*range(MAX_DRAFTS + 3), 0]]
    cells = cells_of(counted(served, interleaved=False))
    assert cells[0, "", "greedy"][0] == 1
    assert cells[OLDER_DRAFTS, OTHER_LABELS, "greedy"][0] == 4  # drafts 0 to 3, before


def test_of_a_tree_the_kept_path_counts():
    counts = ServedCounts()
    counts.add(prefill("r"))
    counts.add(verify("r", 1, 1, tree=TreeShape(4, 2, 8), drafted=[5, 6, -1, -1]))
    counts.add(verify("r", 1, 2, tree=TreeShape(4, 2, 8), drafted=[5, 6, -1, -1]))  # its last node was a leaf
    (row,) = counts.counters().positions
    assert (row.tried, row.stood) == ([2, 2], [2, 1])


def test_rounds_that_drafted_nothing_or_committed_nothing_count_nowhere():
    counts = ServedCounts()
    counts.add(prefill("r"))
    counts.add(verify("r", 1, 0, width=0))
    counts.add(verify("r", 1, 2, tokens=(), finish="abort"))
    found = counts.counters()
    assert (found.cells, found.positions, sum(found.request_lengths)) == ([], [], 0)


def test_a_lost_request_ends_its_stretch_and_its_later_rounds_are_counted_as_not_attributed():
    counts = ServedCounts()
    for forward in (prefill("r", "py"), verify("r", 1, 2), verify("r", 1, 1)):
        counts.add(forward)
    counts.lose(["r", "never seen"])
    counts.add(verify("r", 1, 3))
    counts.add(verify("unknown", 1, 3, finish="stop"))
    found = counts.counters()
    assert cells_of(found) == {(1, "py", "greedy"): (2, 3, (1, 2, 3, 4, 6, 9))}
    assert found.unattributed == 2
    assert sum(found.request_lengths) == 0  # it was never seen to end


def test_requests_that_never_end_are_forgotten_and_counted(monkeypatch):
    monkeypatch.setattr(served_counts, "MAX_RUNNING", 3)
    counts = ServedCounts()
    for i in range(5):
        counts.add(prefill(f"r{i}"))
        counts.add(verify(f"r{i}", 1, 1))
    found = counts.counters()
    assert found.forgotten == 2
    assert cells_of(found) == {(1, "", "greedy"): (5, 5, (2, 2, 2, 2, 2, 2))}


def test_a_request_that_is_prefilled_in_chunks_or_again_is_one():
    counts = ServedCounts()
    for forward in (prefill("r"), prefill("r"), verify("r", 1, 1), prefill("r"), verify("r", 1, 1, finish="stop")):
        counts.add(forward)
    assert cells_of(counts.counters()) == {(1, "", "greedy"): (2, 2, (1, 2, 2, 4, 4, 4))}


def test_a_long_label_is_cut():
    counts = ServedCounts()
    counts.add(prefill("r", "x" * 100))
    counts.add(verify("r", 1, 1))
    assert [cell.label for cell in counts.counters().cells] == ["x" * MAX_SHOWN_CHARS]


@settings(deadline=None, max_examples=50)
@given(st.lists(REQUESTS, max_size=6), st.lists(REQUESTS, max_size=6))
def test_a_courier_that_follows_another_one_goes_on_from_its_counters(earlier, later):
    before = counted(earlier)
    counts = ServedCounts()
    counts.adopt(before)
    for i, request in enumerate(later):
        for forward in request.forwards(f"r{i}"):
            counts.add(forward)
    both = [*earlier, *later]
    found = counts.counters()
    assert cells_of(found) == oracle_cells(both)
    assert found.request_lengths == oracle_lengths(both)
    tried, stood = oracle_positions(both)
    assert {(row.draft, i): n for row in found.positions for i, n in enumerate(row.tried) if n} == +tried
    assert {(row.draft, i): n for row in found.positions for i, n in enumerate(row.stood) if n} == +stood


@pytest.mark.parametrize(("length", "at"), [(1.0, 0), (1.05, 0), (1.2, 1), (8.0, 11), (9.0, 12)])
def test_a_request_is_in_the_bin_whose_upper_edge_it_does_not_exceed(length, at):
    rounds = 20
    accepted = round((length - 1.0) * rounds)
    each = [accepted // rounds + (i < accepted % rounds) for i in range(rounds)]
    found = counted([Served("", "greedy", [(1, one, 10) for one in each])])
    assert found.request_lengths.index(1) == at
