"""Panels 3 and 4: every draft from birth to its end, and how far the live one is accepted."""

from collections.abc import Mapping

from ...buffer.board.version import VersionState
from ...policies.readings.ratio_sums import RatioSums
from ...policies.readings.served_drafts import ServedDraft, served_drafts
from ...policies.readings.served_labels import served_labels
from ...policies.verdict_words import spelt
from ..by_start import by_start_rows
from ..cells import label_word
from ..draft_card import sums_json
from .lives import Stay
from .look import Look

#: Newest drafts that the lane shows; an hour of a quick learner has as many.
LANE_DRAFTS = 24
#: A refusal and what follows from it is a point in time; these last.
_LASTING = frozenset((VersionState.CANDIDATE, VersionState.CANARY, VersionState.LIVE))


def lane_panel(look: Look) -> dict[str, object]:
    """The newest drafts with their stays, newest first."""
    numbers = sorted(look.lives.stays, reverse=True)
    rows = look.seen.state.rows
    drafts = [
        {
            "number": number,
            "state": rows[number].state.value,
            **spelt(rows[number].why),
            "bars": [_bar(stay) for stay in look.lives.stays[number] if _is_shown(stay)],
        }
        for number in numbers[:LANE_DRAFTS]
    ]
    left_out = len(numbers) - len(drafts)
    note = "A click opens the draft below. Thin: made, not yet decided; full: live; dashed: canary; ✕: refused."
    return {"drafts": drafts, "note": f"{note} {left_out} older drafts are left out." if left_out else note}


def _is_shown(stay: Stay) -> bool:
    return stay.state in _LASTING or stay.state is VersionState.REFUSED


def _bar(stay: Stay) -> dict[str, object]:
    return {"state": stay.state.value, "from": stay.since, "to": stay.to}


def positions_panel(look: Look) -> dict[str, object]:
    """The live draft by position, beside what a rollback would return to; by label, and by where rounds began."""
    state = look.seen.state
    served = served_drafts(look.seen.counters())
    live = served.get(state.live) if state.live is not None else None
    if live is None:
        return {"why_unknown": _why_unknown(look)}
    previous = served.get(state.previous, ServedDraft()) if state.previous is not None else ServedDraft()
    return {
        "draft": state.live,
        "before": state.previous if previous.tried else None,
        "rows": _positions(live, previous),
        "labels": _labels(served_labels(look.seen.counters(), state.live or 0)),
        "starts": by_start_rows(live),
        "why_unknown": "",
    }


def _positions(ours: ServedDraft, before: ServedDraft) -> list[dict[str, object]]:
    earlier = before.by_position
    return [
        {
            "position": place + 1,
            "tried": ours.tried[place],
            "stood": ours.stood[place],
            "rate": rate,
            "rate_before": earlier[place] if place < len(earlier) else None,
        }
        for place, rate in enumerate(ours.by_position)
    ]


def _labels(by_label: Mapping[str, RatioSums]) -> list[dict[str, object]]:
    """With most rounds first."""
    found = sorted(by_label.items(), key=lambda item: (-item[1].rounds, item[0]))
    return [{"label": label_word(label), **sums_json(sums)} for label, sums in found]


def _why_unknown(look: Look) -> str:
    live = look.seen.state.live
    return "no draft is live on the board" if live is None else f"no member has counted a round of draft {live}"
