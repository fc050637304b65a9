"""Which server this is: so that figures of another start, host or release are not taken for its own."""

import socket
import time
import uuid
from dataclasses import dataclass, field

from ..buffer.board.member_status import ProcessSaid
from ..buffer.code_version import code_version
from . import sglang_speculation
from .supported_release import installed_release


@dataclass(slots=True)
class ServerIdentity:
    """One start of a server; `boot` is of no other."""

    boot: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    started_at: float = field(default_factory=time.time)  # unix seconds
    _said: ProcessSaid | None = None

    def said(self) -> ProcessSaid:
        """For the replica's heartbeat; speculation flags are those that SGLang resolved."""
        self._said = self._said or self._on_this_host()
        self._said.speculation = self._said.speculation or sglang_speculation.flags()
        return self._said

    def _on_this_host(self) -> ProcessSaid:
        """Reads files: asked once, not every second."""
        return ProcessSaid(
            boot=self.boot,
            started_at=round(self.started_at, 3),
            host=socket.gethostname(),
            paceline=code_version(),
            sglang=installed_release() or "",
        )
