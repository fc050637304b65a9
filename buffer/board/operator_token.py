"""The operator's token: how it is hashed for keeping, and how a token is compared with the one that was set.

What is kept is a seal, ``scrypt1$<salt>$<digest>``, both in hex. The cost is part of the name ``scrypt1`` and never
read from the seal, so that nobody who can write seals can make comparing them expensive.
"""

import hashlib
import hmac
import os

from ..errors import ConfigError

#: A shorter token could be guessed from its seal.
MIN_TOKEN_CHARS = 16

_KIND = "scrypt1"
_SALT_BYTES = 16


def hash_token(token: str) -> str:
    """Return a new seal of `token`. Takes about a tenth of a second and 32 MiB. ConfigError when it is too short."""
    if len(token) < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"operator token: got {len(token)} characters, expected at least {MIN_TOKEN_CHARS}; "
            "make one with `openssl rand -hex 32`"
        )
    salt = os.urandom(_SALT_BYTES)
    return f"{_KIND}${salt.hex()}${_digest(token, salt).hex()}"


def verify_token(token: str, seal: str) -> bool:
    """Whether `seal` was made from `token`; false for every token when `seal` is malformed."""
    kind, _, rest = seal.partition("$")
    salt, _, digest = rest.partition("$")
    try:
        expected = bytes.fromhex(digest)
        given = _digest(token, bytes.fromhex(salt))
    except ValueError:
        return False
    return kind == _KIND and hmac.compare_digest(given, expected)


def _digest(token: str, salt: bytes) -> bytes:
    # surrogateescape: an environment variable may hold bytes that are not UTF-8.
    secret = token.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(secret, salt=salt, n=2**15, r=8, p=1, maxmem=2**26)
