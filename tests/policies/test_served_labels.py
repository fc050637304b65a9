"""What a draft served by label adds up to what it served, over servers and restarts."""

from paceline.buffer.board.counters import OLDER_DRAFTS, Counters, ServedCell, ServedCounters
from paceline.policies.readings.ratio_sums import RatioSums
from paceline.policies.readings.served_drafts import served_drafts
from paceline.policies.readings.served_labels import served_labels


def entry(boot, at, **by_label):
    """Requests of (rounds, accepted) of draft 3 by label; two of draft 2."""

    def cell(draft, label, kind, pairs):
        sums = sum((RatioSums.of(*pair) for pair in pairs), RatioSums())
        ended = sums.requests, sums.rounds, sums.accepted, sums.rounds_squared, sums.rounds_accepted
        return ServedCell(draft=draft, label=label, kind=kind, ended=(*ended, sums.accepted_squared))

    cells = [cell(3, label, kind, pairs) for label, pairs in by_label.items() for kind in ("greedy", "sampled")]
    cells += [cell(2, "", "greedy", [(9, 9)]), cell(OLDER_DRAFTS, "*", "greedy", [(5, 5)])]
    return Counters(at=at, boot=boot, served=ServedCounters(cells=cells))


def test_the_newest_entry_of_each_boot_counts_and_both_kinds_of_sampling():
    entries = [
        entry("a", 2.0, py=[(10, 5), (8, 2)], prose=[(4, 1)]),
        entry("a", 1.0, py=[(10, 5)]),
        entry("b", 3.0, py=[(6, 6)]),
        entry("a", 9.0),  # it tells draft 3 apart no more
    ]
    py, prose = RatioSums.of(10, 5) + RatioSums.of(8, 2) + RatioSums.of(6, 6), RatioSums.of(4, 1)
    assert served_labels(entries, 3) == {"py": py + py, "prose": prose + prose}
    assert served_labels(entries, 7) == {}


def test_labels_add_up_to_the_draft():
    entries = [entry("a", 2.0, py=[(10, 5), (8, 2)], prose=[(4, 1)]), entry("b", 3.0, py=[(6, 6)])]
    for draft, served in served_drafts(entries).items():
        assert sum(served_labels(entries, draft).values(), RatioSums()) == served.sums
