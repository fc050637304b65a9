"""Alarms that a reader raises: what is wrong with members that cannot say so themselves.

Times are seconds by the clock of Redis, which is the same for every member.
"""

from collections.abc import Mapping

from ..guard import Action, Alarm, AlarmName

#: A member that has sent nothing for so long is silent. Members beat every second.
SILENT_S = 15.0
#: Replicas that draft with something else than what is live for so long do not follow the board.
APART_S = 300.0


def member_silent(unseen_s: float, *, is_alive: bool) -> Alarm | None:
    """Raise the alarm where a member that did not say that it ends gives no sign of life, else None.

    `is_alive`: whether its heartbeat has not expired.
    """
    if is_alive and unseen_s < SILENT_S:
        return None
    return Alarm(AlarmName.MEMBER_SILENT, {"unseen_s": unseen_s}, Action.TELL)


def learner_left(why: str, unseen_s: float) -> Alarm:
    """A learner that ended by itself."""
    return Alarm(AlarmName.LEARNER_LEFT, {"why": why, "unseen_s": unseen_s}, Action.TELL)


def learner_stalled(why: str) -> Alarm:
    """A learner that is alive, and whose learning rounds are not started."""
    return Alarm(AlarmName.LEARNER_STALLED, {"why": why}, Action.TELL)


def name_taken(wanted: str, holder_host: str, setting: str) -> Alarm:
    """A member that beats under another name than the one it was given, since a living one has that."""
    figures = {"wanted": wanted, "setting": setting} | ({"holder_host": holder_host} if holder_host else {})
    return Alarm(AlarmName.NAME_TAKEN, figures, Action.TELL)


def drafts_apart(drafts: Mapping[str, int | None], live: int | None, *, for_s: float, is_canary: bool) -> Alarm | None:
    """Replicas that do not draft with the live version though nothing on the board moved for `for_s` seconds.

    `drafts` holds what every live replica that has a draft drafts with. A canary drafts on one replica alone, so
    nothing is said then.
    """
    others = {name: number for name, number in sorted(drafts.items()) if number != live}
    if live is None or is_canary or for_s < APART_S or not others:
        return None
    named = ", ".join(f"{name} with {'nothing known' if number is None else number}" for name, number in others.items())
    return Alarm(AlarmName.DRAFTS_APART, {"live": live, "for_s": for_s, "others": named}, Action.TELL)
