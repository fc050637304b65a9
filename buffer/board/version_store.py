"""VersionStore: where the weights of versions are for servers that share no disk with the learner.

Whoever may write on the board chooses every `weights_uri`, so a place that is not below the settings' own is refused.
stored_weights.py reads and writes.
"""

from dataclasses import dataclass

from ..config import BufferConfig
from .weights_file import WEIGHTS_FILE, weights_file


@dataclass(frozen=True, slots=True)
class VersionStore:
    """The versions of one speculator below `uri`. Empty: there is no store, and versions are folders that all mount."""

    uri: str = ""

    def owns(self, weights_uri: str) -> bool:
        """Return whether `weights_uri` is below the store's."""
        return bool(self.uri) and weights_uri.startswith(f"{self.uri}/") and ".." not in weights_uri.split("/")

    def is_away(self, weights_uri: str) -> bool:
        """Return whether these weights have to be fetched; a store of folders (file://) is read where it is."""
        return self.owns(weights_uri) and not self.uri.startswith("file:")

    def locate(self, weights_uri: str) -> str:
        """Path of the weights file, or the URI to fetch it from. WeightsRefused for any other place."""
        if self.is_away(weights_uri):
            return f"{weights_uri}/{WEIGHTS_FILE}"
        return str(weights_file(weights_uri))


#: Versions are folders that all mount.
NO_STORE = VersionStore()


def store_of(config: BufferConfig) -> VersionStore:
    """The store that the settings name for their speculator."""
    return VersionStore(f"{config.versions_uri.rstrip('/')}/{config.speculator}") if config.versions_uri else NO_STORE
