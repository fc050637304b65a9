"""A short name for a prompt: the same for every answer to it, on every server, and no content.

Answers to one prompt resemble each other, so the gate counts them together. A trace cannot tell by its tokens which
prompt it answers: of a cached prompt it has the last token alone, of a long one the last part.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

#: What a key looks like, for people.
PROMPT_KEY_RULE: Final = "16 hexadecimal digits"

_KEY = re.compile(r"[0-9a-f]{16}")


def prompt_key(token_ids: Sequence[int]) -> str:
    """Digest of a whole prompt, whatever its ids are kept in."""
    ids = np.ascontiguousarray(token_ids, "<i8")
    return hashlib.blake2b(ids.data, digest_size=8, person=b"paceline prompt").hexdigest()


def is_prompt_key(value: str) -> bool:
    """Whether it is text of PROMPT_KEY_RULE."""
    return _KEY.fullmatch(value) is not None
