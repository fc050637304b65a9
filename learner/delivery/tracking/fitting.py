"""Makes every value fit what MLflow's stores take: through this client paceline writes, and nothing else there writes.

One value that is refused would hold up all that is said of its draft, and clients, operators and errors choose values.
The limits are those of MLflow 3.4 to 3.17: `mlflow/utils/validation.py` and, where they are narrower, the columns in
`mlflow/store/*/dbmodels`, which PostgreSQL enforces and SQLite does not. They count characters.
"""

import inspect
import unicodedata
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

LONGEST_NAME: Final = 250
LONGEST_PARAM: Final = 6_000
LONGEST_RUN_TAG: Final = 8_000
LONGEST_INPUT_TAG: Final = 500
#: Of a description, of a tag of a model and of a tag of its versions.
LONGEST_IN_REGISTRY: Final = 5_000

#: Call -> argument -> how long each text in it may be. Other calls write no text of a draft, an operator or a client.
_LONGEST: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "create_run": {"tags": LONGEST_RUN_TAG, "run_name": LONGEST_NAME},
        "set_tag": {"value": LONGEST_RUN_TAG},
        "log_batch": {"params": LONGEST_PARAM},
        "log_inputs": {"datasets": LONGEST_INPUT_TAG},
        "create_logged_model": {"name": LONGEST_NAME, "params": LONGEST_PARAM},
        "create_model_version": {"tags": LONGEST_IN_REGISTRY},
        "update_model_version": {"description": LONGEST_IN_REGISTRY},
        "set_model_version_tag": {"value": LONGEST_IN_REGISTRY},
        "set_registered_model_tag": {"value": LONGEST_IN_REGISTRY},
    }
)
#: Control characters and halves of characters: PostgreSQL takes no NUL, no database half a character.
_REFUSED = {"Cc", "Cs"}


class FittingClient:
    """MLflow's client, each text that it writes cut to what MLflow takes."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        return partial(_called, call, _LONGEST[name]) if name in _LONGEST else call


def fitted(text: str, longest: int) -> str:
    """`text` with at most `longest` characters and a mark where some were cut; what no database takes is replaced."""
    clean = "".join(char if char in "\n\t" or unicodedata.category(char) not in _REFUSED else "\ufffd" for char in text)
    mark = f"… [cut: {len(text)} characters]"
    return clean if len(clean) <= longest else clean[: longest - len(mark)] + mark


def _called(call: Any, longest: Mapping[str, int], *arguments: Any, **named: Any) -> Any:
    bound = inspect.signature(call).bind(*arguments, **named)
    for name, limit in longest.items():
        if name in bound.arguments:
            bound.arguments[name] = _fitted(bound.arguments[name], limit)
    return call(*bound.args, **bound.kwargs)


def _fitted(value: Any, longest: int) -> Any:
    """A text, texts by name, an object of MLflow's with tags or with a key and a value, or several of these."""
    make: Any = type(value)
    match value:
        case str():
            return fitted(value, longest)
        case Mapping():
            return {name: fitted(text, longest) for name, text in value.items()}
        case list() | tuple():
            return [_fitted(one, longest) for one in value]
        case object(dataset=dataset, tags=tags):
            return make(dataset, _fitted(tags, longest))
        case object(key=key, value=text):
            return make(key, fitted(text, longest))
    return value
