"""What keeps a learner from learning: replay that differs from what was served, or an alarm of a replica."""

import math
from collections.abc import Mapping

from ...buffer.board.member_status import MemberStatus
from ...buffer.board.reason import ReasonCode, because
from ...buffer.board.version import BoardState
from ...buffer.plain_text import printable
from ...policies.acceptance import Tally
from ...policies.guard import Action, Alarm, AlarmName, GuardInput, GuardLimits, calibration_gap
from ...policies.learn_schedule import LearnChoice, LearnDecision
from ...policies.rejection import EstimatedRounds
from .calibration import Calibration


def gap_alarm(calibration: Calibration, limits: GuardLimits | None = None) -> Alarm | None:
    """The alarm when the traces of one claim were served with other lengths than their replay gives; else None."""
    served = Tally(calibration.accepted, calibration.compared)
    replayed = Tally(calibration.accepted + calibration.excess, calibration.compared)
    counted = GuardInput(served_compared=served, replayed=replayed)
    checks = (calibration_gap(known, limits or GuardLimits()) for known in (counted, _expected(calibration.estimated)))
    return next((alarm for alarm in checks if alarm is not None), None)


def gone_alarm(state: BoardState) -> Alarm | None:
    """The alarm that nothing can be judged, and so published, for want of the live version's weights."""
    if state.live is None:
        return None
    uri = printable(state.rows[state.live].version.weights_uri)
    return Alarm(AlarmName.WEIGHTS_GONE, {"live": state.live, "uri": uri}, Action.TELL)


def _expected(found: EstimatedRounds) -> GuardInput:
    served = Tally(found.accepted, found.rounds)
    expected = Tally(found.expected, found.rounds)
    error = math.sqrt(found.variance) / found.rounds if found.rounds else 0.0
    return GuardInput(served_compared=served, replayed=expected, replay_error=error)


def rest_for(alarm: Alarm) -> LearnDecision:
    """The decision to rest that an alarm forces."""
    return LearnDecision(LearnChoice.REST, because(ReasonCode.SET_ASIDE, alarm=alarm.name.value, **alarm.figures))


def paused_by(heartbeats: Mapping[str, MemberStatus]) -> str:
    """The first replica that asks learners to wait, and why; empty when none does."""
    asked = {member: said.learning_paused for member, said in sorted(heartbeats.items())}
    return next((f"{member}: {why}" for member, why in asked.items() if why and member.startswith("replica:")), "")
