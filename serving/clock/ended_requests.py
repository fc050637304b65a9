"""Rounds of the requests that ended, captured or not, as SGLang counts them itself."""

from collections.abc import Iterable
from typing import Any


class EndedRequests:
    """Adds up the requests that have ended. One thread adds, any may read."""

    def __init__(self) -> None:
        self.requests = self.rounds = self.accepted = 0

    def look(self, reqs: Iterable[Any], skipped: Any = None) -> list[Any]:
        """Count and return those of SGLang's requests that ended and whose end is not answered yet.

        `skipped` is left out: SGLang will answer it later. Call before SGLang answers `reqs`, each of which has
        `finished_reason`, `finished_output`, `spec_verify_ct` and `spec_num_correct_drafts`.
        """
        ended = [req for req in reqs if req.finished_reason is not None and not req.finished_output]
        if not ended:
            return ended
        ended = [req for req in ended if req is not skipped]
        self.requests += len(ended)
        self.rounds += sum(req.spec_verify_ct for req in ended)
        self.accepted += sum(req.spec_num_correct_drafts for req in ended)
        return ended
