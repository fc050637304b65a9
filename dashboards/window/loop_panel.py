"""Panel 7: where traces go, what the learners do, and the verdicts on drafts."""

from collections.abc import Iterator

from ...buffer.board.counters import LearnerCounters
from ...buffer.board.member_status import MemberStatus
from ...buffer.board.version import VersionState
from ...policies.verdict_words import lead, sentence, spelt
from ..answer import Answer
from ..cells import UNKNOWN, ago
from ..headline import nobody_learns
from ..snapshot import LEARNER, has_ended
from .look import Look

#: Newest verdicts shown.
VERDICTS = 40


def loop_panel(look: Look, found: Answer) -> dict[str, object]:
    """Facts as (name, text), and what became of every draft, oldest first."""
    seen = look.seen
    facts = [("traces", finding.sentence) for finding in found.findings if finding.topic == "loop"]
    for member in sorted(seen.members):
        if not member.startswith(LEARNER):
            continue
        if member in seen.present():
            facts += _learner(member, seen.members[member].said, _counters(look, member))
        else:  # what it said last is not so any more
            away = "ended" if has_ended(seen.members[member]) else "silent"
            facts.append((member, f"{away}, last seen {ago(seen.unseen_s(member))} ago"))
    rows = [(number, row) for number, row in sorted(seen.state.rows.items()) if row.state is not VersionState.CANDIDATE]
    verdicts = [{"number": number, "state": row.state.value, **spelt(row.why)} for number, row in rows[-VERDICTS:]]
    return {"facts": facts, "verdicts": verdicts, "why_unknown": nobody_learns(seen)}


def _counters(look: Look, member: str) -> LearnerCounters | None:
    history = look.seen.histories.get(member, ())
    return history[-1].learner if history else None


def _learner(member: str, said: MemberStatus, counted: LearnerCounters | None) -> Iterator[tuple[str, str]]:
    kind = said.kind or UNKNOWN
    why = lead(said.why)
    yield member, f"{kind}: {why}" if why else kind
    if said.learn_reason:
        yield "learn or rest", f"{said.learn}: {sentence(said.learn_reason)}"
    if counted is not None:
        oldest = (
            "age unknown" if counted.oldest_pending_s is None else f"the oldest for {ago(counted.oldest_pending_s)}"
        )
        yield "waiting traces", f"{counted.pending}, {oldest}" if counted.pending else "none"
        yield "learning rounds", f"{counted.rounds} trained, {counted.rests} rested, {counted.optimiser_steps} steps"
        lost = counted.trimmed + counted.dead_lettered
        yield (
            "lost in the buffer",
            f"{counted.trimmed} trimmed, {counted.dead_lettered} dead letters" if lost else "none",
        )
