"""Finds one draft in MLflow for a command, by its alias; makes nothing there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from ....buffer.board.version import DraftVersion
from ....buffer.errors import PacelineError, TrackingUnavailable
from .aliases import aliases_of
from .mlflow_library import using, without_passwords
from .model_store import KnownVersion, ModelStore, draft_name, find_store


@contextmanager
def asking(uri: str) -> Iterator[None]:
    """Calls of MLflow in the body: whatever its client raises becomes one TrackingUnavailable.

    So does a URI that is none, and a database file that is not there: MLflow would make an empty one, with its folder.
    """
    if not may_be_asked(uri):
        raise TrackingUnavailable(
            f"MLflow: got no file {_sqlite_file(uri)}, expected the database of PACELINE_MLFLOW_URI, which a learner "
            "makes"
        )
    try:
        with using(uri):
            yield
    except PacelineError:
        raise
    except Exception as error:  # MLflow passes on whatever its store raises
        raise TrackingUnavailable(
            f"MLflow: got {without_passwords(str(error))[:300]}, expected an answer: check that it runs, and "
            "PACELINE_MLFLOW_URI"
        ) from error


def may_be_asked(uri: str) -> bool:
    """False where MLflow would make the database that it is asked about. TrackingUnavailable for what is no URI."""
    if "://" not in uri and uri != "databricks":
        raise TrackingUnavailable(
            f"MLflow: got PACELINE_MLFLOW_URI {without_passwords(uri)!r}, expected http://host:port or sqlite:////a/file"
        )
    file = _sqlite_file(uri)
    return file is None or file.is_file()


def _sqlite_file(uri: str) -> Path | None:
    scheme, _, rest = uri.partition("://")
    return Path(unquote(rest.removeprefix("/").partition("?")[0])) if scheme.partition("+")[0] == "sqlite" else None


def find_draft(uri: str, model: str, version: DraftVersion) -> tuple[ModelStore, KnownVersion]:
    """The store and MLflow's version of a draft on the board; call it in the body of `asking`.

    TrackingUnavailable when MLflow has no such draft under its alias, or one with another digest.
    """
    store = find_store(uri, model)
    alias = draft_name(version.number)
    if store is None:
        raise TrackingUnavailable(f"MLflow: got no model {model}, expected it; no learner has registered a draft there")
    at = aliases_of(store).get(alias)
    named = next(((key, found) for key, found in store.versions().items() if found.at == at), None)
    if named is None:
        raise TrackingUnavailable(
            f"MLflow: got no alias {alias} of {model}, expected one; it is set when the learner registers the draft"
        )
    (number, sha256), known = named
    if (number, sha256) != (version.number, version.sha256):
        expected = f"draft {version.number} with sha256 {version.sha256[:12]}… as on the board"
        raise TrackingUnavailable(
            f"MLflow: got draft {number} with sha256 {sha256[:12]}… under {alias} of {model}, expected {expected}"
        )
    return store, known
