"""Encrypts payloads of traces before they reach Redis, and decrypts them: AES-256-GCM, by the key in a file.

A sealed payload is SEALED, in the place of a schema's number, then twelve bytes of nonce, then what is encrypted with
its tag. What is not sealed is read as it is, so that a key may be given to learners first and to servers then.
"""

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ..errors import DecodeError, PayloadKeyUnusable, told

SEALED: Final = b"\xe5\xea"
_NONCE_BYTES: Final = 12
_SETTING: Final = "PACELINE_PAYLOAD_KEY_FILE"
_EXPECTED: Final = "expected a file of 64 hexadecimal digits: `openssl rand -hex 32 > FILE`"


class PayloadSeal:
    """The key of one process; threads may share it. The file is read once, when it is first needed."""

    def __init__(self, key_file: str | None) -> None:
        """None: nothing is encrypted, and what is cannot be read."""
        self._key_file = key_file

    def require(self) -> None:
        """PayloadKeyUnusable where a key is named that cannot be used. Blocks on the disk."""
        if self._key_file is not None:
            self._cipher  # noqa: B018 - reads it

    def seal(self, payload: bytes) -> bytes:
        """What Redis gets. Raises as `require` does."""
        if self._key_file is None:
            return payload
        nonce = os.urandom(_NONCE_BYTES)
        return SEALED + nonce + bytes(self._cipher.encrypt(nonce, payload, SEALED))

    def open(self, raw: bytes) -> bytes:
        """What `seal` was given. DecodeError, with `raw`, without the key of it; else raises as `require` does."""
        if not raw.startswith(SEALED):
            return raw
        if self._key_file is None:
            raise DecodeError(f"trace: got one that is encrypted, expected its key in {_SETTING}", raw)
        begins = len(SEALED) + _NONCE_BYTES
        try:
            return bytes(self._cipher.decrypt(raw[len(SEALED) : begins], raw[begins:], SEALED))
        except self._faults as fault:
            why = "encrypted with another key, or changed"
            raise DecodeError(f"trace: got one {why}, expected that of {_SETTING}", raw) from fault

    @cached_property
    def _cipher(self) -> Any:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
        except ImportError:
            raise PayloadKeyUnusable(
                f"{_SETTING}: got no library `cryptography`, expected it: pip install 'paceline[encryption]'"
            ) from None
        try:
            text = Path(str(self._key_file)).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as fault:
            why = told(fault) if isinstance(fault, OSError) else "got bytes that are no text"
            raise PayloadKeyUnusable(f"{_SETTING}: got {self._key_file} ({why}), {_EXPECTED}") from None
        if not re.fullmatch("[0-9a-fA-F]{64}", text):  # the text itself may be a key, and is not shown
            raise PayloadKeyUnusable(f"{_SETTING}: got {len(text)} characters in {self._key_file}, {_EXPECTED}")
        return AESGCM(bytes.fromhex(text))

    @cached_property
    def _faults(self) -> tuple[type[Exception], ...]:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        return InvalidTag, ValueError
