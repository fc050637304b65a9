"""Alarms: pure checks over what is known of one replica, each with its figures and what to do.

The caller gathers the figures, and acts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from .acceptance import Tally

_UNKNOWN = Tally()


class AlarmName(StrEnum):
    """What is wrong."""

    SILENT_DEATH = "silent_death"  # nothing is accepted any more where drafts were accepted before
    DEGENERATE_DRAFT = "degenerate_draft"  # one token proposed over and over, whatever the text
    SLOWER_THAN_PLAIN = "slower_than_plain"  # speculation serves fewer tokens per second than none
    SWAP_WITHOUT_EFFECT = "swap_without_effect"  # the server holds other weights than were published
    CALIBRATION_GAP = "calibration_gap"  # served and replayed lengths of the same rounds differ
    HOOK_SILENT = "hook_silent"  # the engine verifies rounds and none is captured
    WEIGHTS_GONE = "weights_gone"  # a learner cannot read the live version's, and publishes nothing
    MEMBER_SILENT = "member_silent"  # a server or learner sends nothing any more; raised by who looks
    LEARNER_LEFT = "learner_left"  # a learner ended by itself; raised by who looks
    LEARNER_STALLED = "learner_stalled"  # a learner lives and starts no learning round; raised by who looks
    NAME_TAKEN = "name_taken"  # two live members were given one name; raised by who looks
    DRAFTS_APART = "drafts_apart"  # a replica does not draft with the live version; raised by who looks


class Action(StrEnum):
    """What to do about an alarm."""

    ROLL_BACK = "roll_back"
    SPECULATION_OFF = "speculation_off"
    PAUSE_LEARNING = "pause_learning"
    TELL = "tell"


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that is wrong."""

    name: AlarmName
    figures: Mapping[str, float | str]  # what it was raised on; policies/verdict_words.py makes a sentence of it
    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardInput:
    """What is known of one replica and its live version over one interval. Defaults mean that a figure is unknown."""

    can_roll_back: bool = False  # is there a version to return to
    served: Tally = _UNKNOWN  # by the live version, over this interval
    served_before: Tally = _UNKNOWN  # what it is compared with: earlier intervals, or the version before
    target_move: str = ""  # of the target between the two, in words: "from 7 to 8"; empty: none
    is_same_draft: bool = False  # whether one draft served both
    proposed_drafts: int = 0
    most_proposed: int = 0  # of these, those that propose the commonest draft token
    committed_tokens: int = 0
    most_committed: int = 0  # of these, those that are that same token
    served_compared: Tally = _UNKNOWN  # rounds that were replayed, as served
    replayed: Tally = _UNKNOWN  # the same rounds, replayed with the weights that served them
    replay_error: float = 0.0  # standard error of what was served about what is replayed, in accept length
    engine_rounds: int = 0  # verified by the engine in requests that are to be captured
    captured_rounds: int = 0
    published_sha256: str = ""  # of the live version's weights, as the board says
    loaded_sha256: str = ""  # of the weights in the server
    tokens_per_s: float = 0.0  # with speculation, at some load
    plain_tokens_per_s: float = 0.0  # without, at the same load
    goodput_steps: int = 0  # decode steps in the less measured of the two


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """Where a figure becomes an alarm."""

    min_rounds: int = 200  # fewer raise no alarm about lengths or tokens
    floor_accept_length: float = 1.05  # under it a draft is dead
    alive_accept_length: float = 1.2  # over it the level before was not dead
    degenerate_share: float = 0.9  # of the drafts, one token
    calibration_gap: float = 0.02  # in accept length; replay is exact, so only lost rounds and cut ends excuse one
    replay_errors: float = 4.0  # standard errors that excuse a gap where replay gives an expectation
    plain_margin: float = 0.02  # share by which speculation must be slower
    min_steps: int = 200


Check = Callable[[GuardInput, GuardLimits], Alarm | None]


def alarms(known: GuardInput, limits: GuardLimits | None = None) -> tuple[Alarm, ...]:
    """What is wrong, the gravest first; empty when nothing is. Unknown figures raise no alarm."""
    found = [check(known, limits or GuardLimits()) for check in CHECKS]
    return tuple(alarm for alarm in found if alarm is not None)


def silent_death(known: GuardInput, limits: GuardLimits) -> Alarm | None:
    """Accept length at the floor over enough rounds, and above it before.

    Where only the target has changed meanwhile, the draft is not put out for it: one that follows the target needs the
    traffic of the new one, and the version before it would do no better.
    """
    now = known.served
    before = known.served_before
    is_known = min(now.rounds, before.rounds) >= limits.min_rounds
    was_alive = before.accept_length >= limits.alive_accept_length
    if not (is_known and was_alive and now.accept_length < limits.floor_accept_length):
        return None
    figures = {"length": now.accept_length, "rounds": now.rounds, "length_before": before.accept_length}
    if not known.target_move:
        return Alarm(AlarmName.SILENT_DEATH, figures, _out(known))
    action = Action.TELL if known.is_same_draft else _out(known)
    return Alarm(AlarmName.SILENT_DEATH, {**figures, "target_move": known.target_move}, action)


def degenerate_draft(known: GuardInput, limits: GuardLimits) -> Alarm | None:
    """Nearly all drafts are one token that the text does not repeat as much."""
    if min(known.proposed_drafts, known.committed_tokens) < limits.min_rounds:
        return None
    drafted = known.most_proposed / known.proposed_drafts
    committed = known.most_committed / known.committed_tokens
    if drafted < limits.degenerate_share or committed >= limits.degenerate_share / 2:
        return None
    figures = {"drafted_share": drafted, "drafts": known.proposed_drafts, "committed_share": committed}
    return Alarm(AlarmName.DEGENERATE_DRAFT, figures, _out(known))


def slower_than_plain(known: GuardInput, limits: GuardLimits) -> Alarm | None:
    """Goodput below plain decoding at the same load."""
    is_known = known.goodput_steps >= limits.min_steps and known.plain_tokens_per_s > 0.0
    if not is_known or known.tokens_per_s >= known.plain_tokens_per_s * (1.0 - limits.plain_margin):
        return None
    figures = {
        "tokens_per_s": known.tokens_per_s,
        "plain_tokens_per_s": known.plain_tokens_per_s,
        "steps": known.goodput_steps,
    }
    return Alarm(AlarmName.SLOWER_THAN_PLAIN, figures, Action.SPECULATION_OFF)


def swap_without_effect(known: GuardInput, limits: GuardLimits) -> Alarm | None:
    """The server holds other weights than the live version's, and its traces would be learned from under that name."""
    del limits
    published = known.published_sha256
    loaded = known.loaded_sha256
    if not (published and loaded) or published == loaded:
        return None
    figures = {"loaded": loaded[:12], "published": published[:12]}
    return Alarm(AlarmName.SWAP_WITHOUT_EFFECT, figures, Action.PAUSE_LEARNING)


def calibration_gap(known: GuardInput, limits: GuardLimits) -> Alarm | None:
    """Served and replayed lengths of the same rounds apart: the gate would judge by figures that are not served."""
    ours = known.served_compared
    theirs = known.replayed
    gap = ours.accept_length - theirs.accept_length
    excused = limits.calibration_gap + limits.replay_errors * known.replay_error
    if min(ours.rounds, theirs.rounds) < limits.min_rounds or abs(gap) <= excused:
        return None
    figures = {"served": ours.accept_length, "replayed": theirs.accept_length, "rounds": ours.rounds}
    return Alarm(AlarmName.CALIBRATION_GAP, figures, Action.PAUSE_LEARNING)


def hook_silent(known: GuardInput, limits: GuardLimits) -> Alarm | None:
    """Rounds were verified in requests to be captured, and none arrived."""
    if known.engine_rounds < limits.min_rounds or known.captured_rounds:
        return None
    return Alarm(AlarmName.HOOK_SILENT, {"rounds": known.engine_rounds}, Action.TELL)


#: Gravest first.
CHECKS: tuple[Check, ...] = (
    silent_death,
    degenerate_draft,
    slower_than_plain,
    swap_without_effect,
    calibration_gap,
    hook_silent,
)


def _out(known: GuardInput) -> Action:
    """A bad draft is replaced by the version before it, or by none."""
    return Action.ROLL_BACK if known.can_roll_back else Action.SPECULATION_OFF
