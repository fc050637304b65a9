"""What is said to MLflow, one thing at a time: what it refuses waits, with its reason, and stops nothing after it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ....buffer.plain_text import printable
from .mlflow_library import without_passwords

_log = logging.getLogger(__name__)

#: Wait after MLflow failed to answer, or refused a thing; it doubles with every further failure. The longest is short
#: of the time in which as many versions as stay on disk by default can be published, for a registration brings the
#: weights along.
FIRST_RETRY_S = 60.0
LONGEST_RETRY_S = 240.0

#: What waits where MLflow itself does not answer.
ALL = "MLflow"
#: Of either end of a reason, in the log too: MLflow quotes what it was sent, and what was wrong comes last.
_REASON_CHARS = 150
_NOT_ALLOWED = {"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"}
#: What MLflow's client makes of a time-out and of statuses from 500 on: no fault of what was sent.
_FAULTS = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "DEADLINE_EXCEEDED"}
_TRIED_AGAIN = "it is tried again every few minutes; MLflow's log may say more"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something that MLflow has not been told."""

    what: str
    since: float  # unix seconds
    why: str
    action: str  # what an operator can do


class Attempts:
    """Tries each thing when it is due; `clock` gives seconds. Not for use from two threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.waiting: dict[str, Waiting] = {}  # by what, as the last comparison that came to its end left it
        self._clock = clock
        self._found: dict[str, Waiting] = {}
        self._next: dict[str, tuple[float, float]] = {}  # what -> when it is due again, and the wait until then
        self._ask: Callable[[], object] = lambda: None

    def begin(self, ask: Callable[[], object]) -> None:
        """A comparison begins; `ask` raises where MLflow does not answer a simple question."""
        self.waiting = self.waiting | self._found
        self._found = {}
        self._ask = ask

    def end(self) -> None:
        """It came to its end: what it did not name waits no longer."""
        self.waiting = self._found
        self._found = {}
        self._next = {what: due for what, due in self._next.items() if what in self.waiting}

    def give_up(self, error: Exception) -> float:
        """MLflow does not answer: all of it waits. Return the seconds until it shall be asked again."""
        self._note(ALL, error, time.time(), _remedy(error, "check that MLflow runs, and PACELINE_MLFLOW_URI"))
        self.waiting = self.waiting | self._found
        self._found = {}
        return self._next[ALL][1]

    def do(self, what: str, act: Callable[[], object], since: float | None = None, action: str = _TRIED_AGAIN) -> bool:
        """Do it, if it is due; whether it is done. Where it fails and MLflow answers, it waits, from `since` on.

        Raises what `act` raised where MLflow answers nothing else either. `action` is what an operator can do.
        """
        if self._clock() < self._next.get(what, (-float("inf"), 0.0))[0]:
            self._found[what] = self.waiting[what]
            return False
        try:
            act()
        except Exception as error:  # noqa: BLE001 - MLflow and its stores of files raise whatever theirs do
            try:
                self._ask()
            except Exception:  # noqa: BLE001 - the first error says more
                raise error from None
            action = _TRIED_AGAIN if _code(error) in _FAULTS else action
            self._note(what, error, time.time() if since is None else since, _remedy(error, action))
            _log.warning(
                "MLflow not told of %s: %s; next try in %g s", what, self._found[what].why, self._next[what][1]
            )
            return False
        self._next.pop(what, None)
        return True

    def _note(self, what: str, error: Exception, since: float, action: str) -> None:
        before = self.waiting.get(what)
        wait_s = self._next.get(what, (0.0, 0.0))[1]
        wait_s = min(2 * wait_s or FIRST_RETRY_S, LONGEST_RETRY_S)
        self._next[what] = self._clock() + wait_s, wait_s
        self._found[what] = Waiting(what, before.since if before else since, reason(error), action)


def reason(error: Exception) -> str:
    """Return what is said of an error: one printable line, without passwords."""
    text = str(error) or type(error).__name__
    line = printable(" ".join(without_passwords(text).split()))
    return line if len(line) <= 2 * _REASON_CHARS else f"{line[:_REASON_CHARS]} … {line[-_REASON_CHARS:]}"


def _remedy(error: Exception, otherwise: str) -> str:
    if _code(error) in _NOT_ALLOWED:
        return "give the learner's user the right to write there: MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN"
    if isinstance(error, OSError) and error.errno is not None:
        return "check room and rights of the place where MLflow keeps files"
    return otherwise


def _code(error: Exception) -> str:
    return str(getattr(error, "error_code", ""))
