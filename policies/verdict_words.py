"""The words of reasons and alarms, made here alone: a lead of some five words, a row of numbers, and the long form.

Figures come off a board that anybody may write on: one that is missing or no number is shown as it is, never raised.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from ..buffer.board.reason import ReasonCode, Why
from .guard import AlarmName

#: Odds above are said to be above.
_MOST_SHOWN = 1_000_000

#: Code -> lead, and what the long form adds to it and to the numbers.
_WORDS: Mapping[ReasonCode, tuple[str, str]] = {
    ReasonCode.PROVEN: ("promoted: proven, {odds:odds} to 1", "{needed:n} to 1 are enough"),
    ReasonCode.TRUSTED: (
        "promoted: trusted for {trust:# round}",
        "the line was proven before; the odds are those of a new proof",
    ),
    ReasonCode.NOT_PROVEN: ("refused: not proven, {odds:odds} to 1 of {needed:n}", "{needed:n} to 1 are needed"),
    ReasonCode.MAY_HARM: ("refused: may harm, {harm_odds:odds} to 1", "these odds must fall first"),
    ReasonCode.HARMS: ("refused: harms, {harm_odds:odds} to 1", "the line is not trusted any more"),
    ReasonCode.PUT_BACK: ("rolled back: harms, {harm_odds:odds} to 1", "version {serves:n} serves again"),
    ReasonCode.RUINED: ("refused: fails held-out requests", "the newest draft alone, on those just held out"),
    ReasonCode.UNJUDGED: (
        "canary decides: replay cannot tell",
        "most requests were verified in a way that the committed tokens do not show",
    ),
    ReasonCode.NO_LIVE: ("waits: no version is live", "promote one, and the gate compares with it"),
    ReasonCode.LIVE_UNREADABLE: ("waits: live {live:n} cannot be read", "its weights are at {uri}"),
    ReasonCode.NOT_STORED: (
        "waits: its weights were not stored",
        "{fault}; nothing was published, and the next learning round tries again with a newer draft",
    ),
    ReasonCode.LIVE_MOVED: ("refused: live moved meanwhile", "from {judged} to {live} while it was judged"),
    ReasonCode.NO_CANARY: (
        "refused: no canary can run",
        "it must pass one: serve with two replicas, or set PACELINE_CANARY_TURN_S; and set PACELINE_CANARY_LIMIT_S",
    ),
    ReasonCode.LEARNER_STOPPED: ("refused: its learner stopped", "before the gate's verdict was carried out"),
    ReasonCode.INITIAL: ("promoted: the server's first draft", "it was started with {draft}"),
    ReasonCode.REPLACED: ("replaced by version {by:n}", ""),
    ReasonCode.OVERTAKEN: ("overtaken: version {by:n} went live", ""),
    ReasonCode.WEIGHTS_REFUSED: ("rolled back: weights refused", "by {by}: {fault}"),
    ReasonCode.CANARY_HARMS: (
        "rolled back: harms, {harm_odds:odds} to 1",
        "the first {begin_rounds:# round} of its requests accept far less than live ones {beside}",
    ),
    ReasonCode.CANARY_GAINS: ("promoted: canary gain {gain:+.3f}", "the interval at every look lies above zero"),
    ReasonCode.CANARY_LOSES: ("rolled back: canary gain {gain:+.3f}", "the interval at every look lies below zero"),
    ReasonCode.CANARY_EQUAL: (
        "promoted: canary no worse",
        "undecided after {limit:# request}; the bound of this last look {bound:+.3f} excludes a loss of {margin:n}",
    ),
    ReasonCode.CANARY_UNPROVEN: (
        "rolled back: canary may lose",
        "undecided after {limit:# request}; the bound of this last look {bound:+.3f} allows a loss of {margin:n}",
    ),
    ReasonCode.CANARY_WAITS: ("waits: canary is undecided", "the interval at every look says neither"),
    ReasonCode.CANARY_OVERDUE: ("rolled back: canary undecided for {limit_s:n} s", "it drafted on {replica}"),
    ReasonCode.ALARM: ("rolled back: {alarm}", ""),
    ReasonCode.LEARNING_SET: ("learning is set to {mode}", ""),
    ReasonCode.FEW_FLAT_ROUNDS: (
        "{flat_rounds:# learning round} without a better draft",
        "{rest_after:n} begin a rest",
    ),
    ReasonCode.JUST_AT_REST: ("at rest for {rested_s:.0f} s of {cool_down_s:n} s", "it ends no sooner"),
    ReasonCode.ACCEPTED_FELL: ("accepted per round fell from {usual:.3f} to {level:.3f}", ""),
    ReasonCode.UNEXPLORED: (
        "unexplored traffic: {low:n} of {latest:n} requests low",
        "as low as one in {one_in:n} was before the rest",
    ),
    ReasonCode.NOTHING_NEW: (
        "at rest: {low:n} of {latest:n} requests low",
        "as low as one in {one_in:n} was; {flat_rounds:# learning round} made no draft better than {usual:.3f}",
    ),
    ReasonCode.SET_ASIDE: ("traces set aside: {alarm}", ""),
    ReasonCode.UNKNOWN: ("a reason of a later release", ""),
}

#: Alarm -> its sentence, and what is added where that is known.
_ALARMS: Mapping[str, tuple[str, str]] = {
    AlarmName.SILENT_DEATH: (
        "accept length {length:.3f} over {rounds:n} rounds, {length_before:.3f} before",
        "the target moved {target_move} meanwhile",
    ),
    AlarmName.DEGENERATE_DRAFT: (
        "{drafted_share:.0%} of {drafts:n} drafts are one token, {committed_share:.0%} of the text is",
        "",
    ),
    AlarmName.SLOWER_THAN_PLAIN: (
        "{tokens_per_s:.1f} tokens/s with speculation, {plain_tokens_per_s:.1f} without, {steps:n} steps",
        "",
    ),
    AlarmName.SWAP_WITHOUT_EFFECT: ("weights in the server are {loaded}, published were {published}", ""),
    AlarmName.CALIBRATION_GAP: ("served {served:.3f}, replayed {replayed:.3f} over {rounds:n} rounds", ""),
    AlarmName.HOOK_SILENT: ("{rounds:n} rounds verified, none captured", ""),
    AlarmName.WEIGHTS_GONE: (
        "weights of live version {live:n} cannot be read at {uri}, so that what is learnt is not published",
        "mount that disk, or `paceline restore {live:n}`, or promote another version",
    ),
    AlarmName.MEMBER_SILENT: (
        "not seen for {unseen_s:.0f} s: look at its process and its log; if it is gone for good, `paceline forget`",
        "",
    ),
    AlarmName.LEARNER_LEFT: ("ended by itself {unseen_s:.0f} s ago: {why}; see its log, and start it again", ""),
    AlarmName.LEARNER_STALLED: (
        "no learning round is started: {why}; it goes on by itself once Redis takes its commands",
        "",
    ),
    AlarmName.NAME_TAKEN: (
        "was started as {wanted}, the name of another living member: give each its own {setting}",
        "the other one is on {holder_host}",
    ),
    AlarmName.DRAFTS_APART: (
        "version {live:n} is live for {for_s:.0f} s, and these draft with another: {others}",
        "",
    ),
}

#: The row, in this order, of what is known.
_ROW: Sequence[str] = (
    "odds {odds:odds} to 1 for a gain",
    "{harm_odds:odds} to 1 that {losers} lose",
    "{requests:# request}",
    "{prompts:# prompt}",
    "accept length {accept_length:.3f}",
    "reference {reference_accept_length:.3f}",
    "on {measured_requests:# new request}",
    "canary {canary_accept_length:.3f} on {canary_requests:# request} ({canary_rounds:# round})",
    "live {live_accept_length:.3f} on {live_requests:# request} ({live_rounds:# round})",
    "gain {gain:+.3f}",
    "{confidence:.0%} interval {gain_low:+.3f} to {gain_high:+.3f}",
    "left out {left_out}",
    "left out {late:# request} to prompts just judged",
    "predicted {predicted:.3f} ± {predicted_noise:.3f} by {predicted_requests:# request}",
)


def lead(why: Why) -> str:
    """The verdict in about five words; what an operator typed as it is."""
    return why if isinstance(why, str) else _fill(_WORDS[why.code][0], why.figures)


def figures(why: Why) -> str:
    """The row of numbers; empty where there are none."""
    if isinstance(why, str):
        return ""
    return ", ".join(_fill(part, why.figures) for part in _ROW if _names(part) <= why.figures.keys())


def sentence(why: Why) -> str:
    """The long form: lead, explanation and numbers."""
    if isinstance(why, str):
        return why
    alarm = why.figures.get("alarm")
    raised = alarm_sentence(str(alarm), why.figures) if alarm else ""
    return "; ".join(filter(None, (lead(why), _fill(_WORDS[why.code][1], why.figures), raised, figures(why))))


def alarm_sentence(name: str, known: Mapping[str, float | str]) -> str:
    """What is wrong, and what to do where that is not plain; the bare figures of an alarm of a later release."""
    if name not in _ALARMS:
        return ", ".join(f"{figure} {value}" for figure, value in known.items())
    said, more = _ALARMS[name]
    extra = _fill(more, known) if _names(more) <= known.keys() else ""
    return "; ".join(filter(None, (_fill(said, known), extra)))


def spelt(why: Why) -> dict[str, str]:
    """All three, for a page."""
    return {"lead": lead(why), "figures": figures(why), "why": sentence(why)}


def shown_odds(odds: float) -> str:
    """For people, who compare no exponents."""
    if odds >= _MOST_SHOWN:
        return f"over {_MOST_SHOWN:,}"
    return f"{odds:,.0f}" if odds >= 100.0 else f"{odds:.3g}"


def _names(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def _fill(template: str, known: Mapping[str, float | str]) -> str:
    return _Filled().vformat(template, (), defaultdict(lambda: "unknown", known))


class _Filled(Formatter):
    """Knows three formats more: `odds`, `n` for a plain number, and `# noun` for a count of it."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, str):
            return value
        if format_spec == "odds":
            return shown_odds(value)
        number = f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
        if format_spec.startswith("#"):
            return f"{number}{format_spec[1:]}{'' if value == 1 else 's'}"
        return number if format_spec in {"", "n"} else format(value, format_spec)
