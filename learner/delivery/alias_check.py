"""Whether MLflow answers, and whether its aliases are the board's: said for `paceline doctor`, or made so."""

from dataclasses import dataclass

from ...buffer.board.version import BoardState
from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import TrackingUnavailable
from .tracking.aliases import FOLLOWING, aliases_of, following, set_aliases
from .tracking.attempts import Attempts
from .tracking.lookup import asking, may_be_asked
from .tracking.model_store import find_store


@dataclass(frozen=True, slots=True)
class AliasCheck:
    """The answer; `is_well` is None where it cannot be told."""

    is_well: bool | None
    sentence: str  # what was found and, where something is wrong, what to do


def check_aliases(uri: str, model: str, state: BoardState) -> AliasCheck:
    """Compare the aliases of `model` at `uri` with the board. Blocks while MLflow answers, up to a minute when not."""
    try:
        with asking(uri):
            return _compare(uri, model, state)
    except TrackingUnavailable as fault:
        return AliasCheck(False, f"{fault}; versions are delivered all the same, and registered when it answers")


def compare_once(board: VersionBoard, uri: str, model: str, attempts: Attempts) -> None:
    """Make the aliases of `model` those of the board, if MLflow has it; one that it refuses waits among `attempts`.

    Raises BufferUnavailable, TrackingUnavailable.
    Before the first draft is registered there may be no database yet: then there is nothing to do.
    """
    if not may_be_asked(uri):
        return
    with asking(uri):
        store = find_store(uri, model)
        if store is not None:
            attempts.begin(store.ask)
            set_aliases(store, board.read(), store.versions(), attempts)
            attempts.end()


def _compare(uri: str, model: str, state: BoardState) -> AliasCheck:
    store = find_store(uri, model)
    if store is None:
        why = f"MLflow answers and has no model {model}: no learner has registered a draft yet, or it was deleted there"
        return AliasCheck(False if state.rows else None, why)
    now = aliases_of(store)
    board = following(state)
    numbers = {known.at: key[0] for key, known in store.versions().items()}
    named = {alias: numbers.get(now[alias]) for alias in FOLLOWING if alias in now}
    wrong = [
        f"{alias} is {_draft(named.get(alias))} in MLflow and {_draft(board.get(alias))} on the board"
        for alias in FOLLOWING
        if named.get(alias) != board.get(alias)
    ]
    if not wrong:
        return AliasCheck(True, f"MLflow answers, and its aliases are the board's: live is {_draft(board.get('live'))}")
    told = "; ".join(wrong)
    back = "a running learner sets it back within a minute, once MLflow has the draft: is one running?"
    return AliasCheck(False, f"{told}; {back}")


def _draft(number: int | None) -> str:
    return "no draft" if number is None else f"draft {number}"
