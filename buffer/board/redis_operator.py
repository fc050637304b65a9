"""OperatorAuth: who may act as an operator on a speculator's board, and who was refused."""

from typing import Any

import redis

from ..config import BufferConfig
from ..errors import OperatorRefused
from ..keys import OPERATOR_TOKEN, REFUSALS_KEPT, REFUSED_OPERATORS
from ..plain_text import printable
from ..redis_client import refuse_text_client, translate_redis_errors
from .audit import AuditEntry, entry_time
from .operator_token import hash_token, verify_token


class OperatorAuth:
    """Requires the operator's token once one was set; keeps only its seal. Members of the board are never asked.

    This keeps honest programs from acting by mistake and people without the token from acting through them. It does
    not protect Redis: anybody who may write there can write to the board directly. Every method may raise
    BufferUnavailable.
    """

    def __init__(self, client: redis.Redis, config: BufferConfig) -> None:
        refuse_text_client(client)
        self._client = client
        self._speculator = config.speculator
        self._token_key = OPERATOR_TOKEN.name(config.speculator)
        self._refusals_key = REFUSED_OPERATORS.name(config.speculator)

    def require(self, token: str | None, by: str, act: str) -> None:
        """Return when no token was set or `token` is it; else record the refusal and raise OperatorRefused.

        `act` names what `by` wants to do, for the message and the audit trail.
        """
        with translate_redis_errors(self._client):
            newest: Any = self._client.xrevrange(self._token_key, count=1)
        self._require(newest, token, by, act)

    def record_unheard(self, by: str, acts: int, why: str) -> None:
        """Put acts that nobody looked at on record, as one entry; nothing where no token was set."""
        with translate_redis_errors(self._client):
            if self._client.exists(self._token_key):
                self._record_refusal(by, f"{acts} {'act' if acts == 1 else 'acts'} not heard", why)

    def set_token(self, new: str, token: str | None, by: str, why: str) -> None:
        """Make `new` the operator's token; `token` must be the one in force, if there is one.

        Raises ConfigError when `new` is too short and OperatorRefused as `require` does; then nothing changes. When
        two set a first token at the same moment, one of them is refused for lack of the other's.
        """
        seal = hash_token(new)

        def write(pipe: Any) -> None:
            self._require(pipe.xrevrange(self._token_key, count=1), token, by, "token set")
            pipe.multi()
            pipe.xadd(self._token_key, {"seal": seal, "by": by, "why": why})

        with translate_redis_errors(self._client):
            self._client.transaction(write, self._token_key)

    def history(self) -> list[AuditEntry]:
        """Every change of the token, and the newest REFUSALS_KEPT refused acts; oldest first in each."""
        with translate_redis_errors(self._client):
            changes: Any = self._client.xrange(self._token_key)
            refusals: Any = self._client.xrange(self._refusals_key)
        return [
            *(_entry(row, "operator token set", refused=False) for row in changes),
            *(_entry(row, f"refused: {_text(row[1], b'act')}", refused=True) for row in refusals),
        ]

    def _require(self, newest: Any, token: str | None, by: str, act: str) -> None:
        """`newest` holds the stream's newest entry; empty when no token was set."""
        if not newest:
            return
        fields = newest[0][1]
        if token and verify_token(token, _text(fields, b"seal")):
            return
        got = "another token" if token else "no token"
        setter = printable(_text(fields, b"by"))
        with translate_redis_errors(self._client):
            self._record_refusal(by, act, f"got {got}")
        raise OperatorRefused(
            f"{act}: got {got}, expected the operator token that {setter} set for {self._speculator}; "
            f"put it into PACELINE_OPERATOR_TOKEN. If it is lost, delete the key {self._token_key} in Redis and set "
            "another"
        )

    def _record_refusal(self, by: str, act: str, why: str) -> None:
        refusal: Any = {"by": by, "act": act, "why": why}
        self._client.xadd(self._refusals_key, refusal, maxlen=REFUSALS_KEPT, approximate=False)


def _entry(row: tuple[bytes, dict[bytes, bytes]], what: str, *, refused: bool) -> AuditEntry:
    entry_id = row[0].decode()
    by = _text(row[1], b"by")
    why = _text(row[1], b"why")
    return AuditEntry(entry_id=entry_id, at=entry_time(entry_id), by=by, what=what, why=why, refused=refused)


def _text(fields: dict[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")
