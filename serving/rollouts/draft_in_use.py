"""What the trainer asks Redis: which draft is in use, and for a learning round."""

import socket
from dataclasses import dataclass

from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.errors import ConfigError
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from .config import RolloutConfig

_REPLICA = "replica:"


@dataclass(frozen=True, slots=True)
class DraftInUse:
    """The oldest draft version that a server of the speculator drafts with."""

    number: int
    target_version: str | None  # whose traces it was trained on last; None: the board does not know this draft


class DraftLink:
    """Redis of one speculator. Every method blocks for two seconds at most and may raise BufferUnavailable."""

    def __init__(self, config: RolloutConfig) -> None:
        if config.redis_url is None:
            raise ConfigError("PACELINE_REDIS_URL: got nothing, expected the Redis of the servers and the learner")
        self._client = connect(config.redis_url, config.redis_ca)
        self._buffer = RedisTraceBuffer(self._client, config.buffer)
        self._board = RedisVersionBoard(self._client, config.buffer)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask_for_round(self) -> None:
        """Ask the learner for a learning round; it starts once it has the traces, about a second later."""
        self._buffer.ask_for_round(f"trainer on {socket.gethostname()}")

    def in_use(self) -> DraftInUse | None:
        """None while no server has a heartbeat."""
        beats = [said for member, said in self._board.heartbeats().items() if member.startswith(_REPLICA)]
        numbers = [said.draft_version for said in beats if said.draft_version is not None]
        if not numbers:
            return None
        row = self._board.read().rows.get(min(numbers))
        return DraftInUse(min(numbers), row.version.target_version if row else None)
