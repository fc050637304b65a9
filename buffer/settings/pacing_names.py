"""Names that PACELINE_PACING takes."""

from enum import StrEnum


class PacingName(StrEnum):
    """How the number of draft steps is chosen on a server started with --speculative-adaptive."""

    OFF = "off"  # SGLang's own rule
    GOODPUT = "goodput"
    SWEEP = "sweep"  # every length in turn: what `paceline pacing-costs` measures by
