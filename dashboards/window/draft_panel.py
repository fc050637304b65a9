"""Panel 6: one draft, and what may be done with it."""

from collections import Counter

from ...buffer.board.version import MOVES, BoardRow, BoardState, VersionState
from ...policies.judged_on import sentence
from ...policies.readings.served_labels import served_labels
from ...policies.verdict_words import spelt
from ..cells import label_word
from ..draft_list import draft_card
from ..mlflow_link import mlflow_link
from .look import Look


def draft_panel(look: Look, asked: int | None) -> dict[str, object]:
    """The draft `asked`; without one the live draft, else the newest."""
    state = look.seen.state
    number = asked if asked is not None else state.live if state.live is not None else max(state.rows, default=None)
    if number is None or number not in state.rows:
        return {
            "number": number,
            "why_unknown": f"draft {number} is not on the board" if state.rows else "no draft yet",
        }
    card = draft_card(look.seen, look.events, number)
    row = state.rows[number]
    link = mlflow_link(look.seen, number)
    return {
        **card.as_json(),
        # The state and what was judged have places of their own.
        "facts": [(name, text) for name, text in card.facts().items() if not name.startswith(("state", "judged"))],
        "state": row.state.value,
        **spelt(row.why),
        "changed_at": row.changed_at,
        "labels": _labels(row, _served_now(look)),
        "judged_text": "nothing was judged" if row.version.judged_on is None else sentence(row.version.judged_on),
        "commands": [f"paceline versions show {number}", f"paceline explain --draft {number}"],
        "mlflow": link.url,
        "mlflow_unknown": link.why_unknown,
        **_acts(state, number),
        "why_unknown": "",
    }


def _served_now(look: Look) -> dict[str, int]:
    """By label, requests that the live draft has served."""
    live = look.seen.state.live
    found = {} if live is None else served_labels(look.seen.counters(), live)
    return {label: sums.requests for label, sums in found.items()}


def _labels(row: BoardRow, now: dict[str, int]) -> list[dict[str, object]]:
    """Shares by label: of the requests judged, of the newest traffic then, and of what the live draft served since."""
    judged_on = row.version.judged_on
    if judged_on is None:
        return []
    counts = [Counter(judged_on.labels), Counter(judged_on.newest_labels), Counter(now)]
    labels = sorted(sum(counts, Counter()), key=lambda label: -counts[0][label])
    shares = ({label: c[label] / c.total() if c.total() else None for label in labels} for c in counts)
    judged, then, since = shares
    return [
        {"label": label_word(label), "judged": judged[label], "then": then[label], "now": since[label]}
        for label in labels
    ]


def _acts(state: BoardState, number: int) -> dict[str, object]:
    """What the board would take now, and what it would do."""
    row = state.rows[number]
    may_promote = VersionState.LIVE in MOVES[row.state]
    is_canary = number == state.canary
    may_roll_back = is_canary or (number == state.live and state.previous is not None)
    back = f"draft {state.live} stays live" if is_canary else f"draft {state.previous} comes back"
    offers = [f"Rolling back ends draft {number}: {back}."] if may_roll_back else []
    offers += [f"Promoting makes draft {number} live in place of {state.live}."] if may_promote else []
    text = " ".join(offers) or f"Nothing can be done with draft {number}: it is {row.state.value}."
    return {"may_promote": may_promote, "may_roll_back": may_roll_back, "act_text": text}
