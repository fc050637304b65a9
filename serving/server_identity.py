"""Which server this is: so that figures of another start, host or release are not taken for its own."""

import socket
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from ..buffer.code_version import code_version
from . import sglang_speculation
from .supported_release import installed_release


@dataclass(slots=True)
class ServerIdentity:
    """One start of a server; `boot` is of no other."""

    boot: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    started_at: float = field(default_factory=time.time)  # unix seconds
    _flags: dict[str, Any] = field(default_factory=dict)
    _fixed: dict[str, Any] = field(default_factory=dict)

    def status(self) -> dict[str, Any]:
        """For the replica's heartbeat, as JSON values; speculation flags are those that SGLang resolved."""
        self._flags = self._flags or sglang_speculation.flags()
        self._fixed = self._fixed or self._on_this_host()
        return {**self._fixed, "speculation": self._flags}

    def _on_this_host(self) -> dict[str, Any]:
        """Reads files: asked once, not every second."""
        return {
            "boot": self.boot,
            "started_at": round(self.started_at, 3),
            "host": socket.gethostname(),
            "paceline": code_version(),
            "sglang": installed_release(),
        }
