"""Kinds of values that settings take, as msgspec converts and checks them."""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

Whole = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
#: Requests that the schedule of learning remembers at most.
Remembered = Annotated[int, Meta(ge=1, le=1000)]
Seconds = Annotated[float, Meta(ge=0)]
Interval = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(gt=0, lt=1)]
Portion = Annotated[float, Meta(ge=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]
#: A name becomes a Redis key, a folder, a queue and a registered model: no separators, no blanks, no braces.
NAME_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
Name = Annotated[
    str,
    Meta(
        pattern=rf"^{NAME_PATTERN}\Z",
        description="1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit",
    ),
]


#: Neither user nor password nor query, which may be secrets and would be on the board; no chain of file systems.
StoreUri = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9+]*://[^\s?#%:@/]*(:[0-9]+)?(/[^\s?#%:]*)?\Z",
        description="scheme://place without user, password or query: credentials are found by the store's library",
    ),
]


class PacingName(StrEnum):
    """How the number of draft steps is chosen on a server started with --speculative-adaptive."""

    OFF = "off"  # SGLang's own rule
    GOODPUT = "goodput"
    SWEEP = "sweep"  # every length in turn: what `paceline pacing-costs` measures by
