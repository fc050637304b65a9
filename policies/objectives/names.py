"""Names of what production can train a draft on, and of how it weighs draft positions. Reading them needs no torch."""

from enum import StrEnum


class Objective(StrEnum):
    """What a draft is trained on."""

    COMMITTED = "committed"  # -log A under greedy
    SOFT = "soft"  # cross-entropy to the distribution the request was served with: the default
    TARGET_ONLY = "target_only"  # -log A under target_only
    REJECTION = "rejection"  # -log A under rejection; also the -log alpha of LK
    MATCHED = "matched"  # -log A under the verdict rule of each trace


class Weighting(StrEnum):
    """How much a draft position counts against the first one of its round."""

    GEOMETRIC = "geometric"
    SURVIVAL = "survival"
