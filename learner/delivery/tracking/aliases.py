"""Aliases: `live`, `previous` and `candidate` follow the board; `draft-N` is draft N, however MLflow counts."""

import json
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ....buffer.board.version import BoardState, VersionState
from .attempts import Attempts
from .model_store import Key, KnownVersion, ModelStore, draft_name, key_of

_log = logging.getLogger(__name__)

#: On the registered model: the aliases as paceline set them last, as JSON. What differs, somebody else has changed.
SET_TAG = "paceline.aliases"
#: On the version that an alias was set back to: what it named meanwhile, and when that was seen.
RESET_TAG = "paceline.alias_reset"

#: The aliases that follow the board; others, but for `draft-N`, are people's own and stay as they are.
FOLLOWING = ("live", "previous", "candidate")

#: States of a version that may still go live without an operator.
_CANDIDATES = {VersionState.CANDIDATE, VersionState.CANARY}


def following(state: BoardState) -> dict[str, int]:
    """Alias -> draft, without those that no draft has; `candidate` is the newest candidate."""
    candidates = [number for number, row in state.rows.items() if row.state in _CANDIDATES]
    numbers = {"live": state.live, "previous": state.previous, "candidate": max(candidates, default=None)}
    return {alias: number for alias, number in numbers.items() if number is not None}


def wanted_aliases(state: BoardState, known: Mapping[Key, KnownVersion]) -> dict[str, str]:
    """Alias -> MLflow's number, of the drafts that MLflow knows."""
    at = {number: known[key_of(row)].at for number, row in state.rows.items() if key_of(row) in known}
    found = {alias: at[number] for alias, number in following(state).items() if number in at}
    return found | {draft_name(number): version for number, version in at.items()}


def aliases_of(store: ModelStore) -> dict[str, str]:
    """Alias -> MLflow's number, as they are set now."""
    return _aliases(store.client.get_registered_model(store.model))


def set_aliases(store: ModelStore, state: BoardState, known: Mapping[Key, KnownVersion], attempts: Attempts) -> None:
    """Make each alias what the board says; what somebody else has changed is tagged and logged.

    An alias of a draft that MLflow does not have is removed: it would name another.
    """
    model = store.client.get_registered_model(store.model)
    now = _aliases(model)
    wanted = wanted_aliases(state, known)
    set_last = _set_last(model.tags.get(SET_TAG, ""))
    meant = {alias: wanted[alias] for alias in FOLLOWING if alias in wanted}
    if set_last != meant:  # first: a process that dies between the two takes nobody's change for its own
        text = json.dumps(meant)
        attempts.do("the record of aliases", lambda: store.client.set_registered_model_tag(store.model, SET_TAG, text))
    for alias in FOLLOWING:
        if alias in now and alias not in wanted:
            attempts.do(f"alias {alias}", partial(store.client.delete_registered_model_alias, store.model, alias))
    for alias, version in wanted.items():
        found = now.get(alias)
        if found != version:
            what = f"alias {alias}"
            is_reset = alias in set_last and found != set_last[alias] and what not in attempts.waiting
            attempts.do(what, partial(_set, store, alias, found, version, is_reset=is_reset))


def _set(store: ModelStore, alias: str, found: str | None, version: str, *, is_reset: bool) -> None:
    store.client.set_registered_model_alias(store.model, alias, version)
    if is_reset:
        _tag_reset(store, alias, found, version)


def _tag_reset(store: ModelStore, alias: str, found: str | None, version: str) -> None:
    at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")
    was = f"named MLflow version {found}" if found else "was deleted"
    text = f"{alias} {was} and not {version}, as the board says; set back at {at}"
    _log.warning("MLflow: alias %s", text)
    store.client.set_model_version_tag(store.model, version, RESET_TAG, text)


def _set_last(text: str) -> dict[str, str]:
    """Return what SET_TAG says; empty where somebody has made something else of it."""
    try:
        told = json.loads(text or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _aliases(model: Any) -> dict[str, str]:
    return {alias: str(version) for alias, version in model.aliases.items()}
