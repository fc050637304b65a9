"""MLflow, imported by name when it is first used: it takes seconds to import, and the analysis cannot follow it."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ...config import quiet_mlflow
from .fitting import FittingClient


def mlflow_library(part: str = "") -> Any:
    """The module `mlflow`, or its part `part`, as "entities"."""
    quiet_mlflow()
    return import_module(f"mlflow.{part}" if part else "mlflow")


def open_client(uri: str) -> Any:
    """A client of the tracking server or database at `uri`, for runs and registered models alike; asks it nothing.

    What it writes is cut to what MLflow takes.
    """
    return FittingClient(mlflow_library().MlflowClient(tracking_uri=uri, registry_uri=uri))


@contextmanager
def using(uri: str) -> Iterator[None]:
    """Calls of MLflow in the body: a database's registry looks up logged models where the process points to."""
    with warnings.catch_warnings():
        # MLflow's own table definitions use a loader that SQLAlchemy 2.1 is about to drop.
        warnings.filterwarnings("ignore", message="The ``noload`` loader strategy")
        # Said of a class of MLflow's own when its pyfunc is imported.
        warnings.filterwarnings("ignore", message=".*Any type hint is inferred")
        mlflow_library().set_tracking_uri(uri)
        yield


def is_absent(error: Exception) -> bool:
    """Return whether MLflow answered that there is no such thing, and did not fail to answer."""
    return getattr(error, "error_code", "") in {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"}


def without_passwords(text: str) -> str:
    """`text` without the user and password of any URL in it."""
    return re.sub(r"//[^/@\s]+@", "//***@", text)
