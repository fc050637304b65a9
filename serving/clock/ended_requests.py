"""Rounds of the requests that ended, captured or not, as SGLang counts them itself."""

from collections.abc import Sequence
from typing import Any

from ..sglang_speculation import is_counted


class EndedRequests:
    """Adds up the requests that have ended. One thread adds, any may read."""

    def __init__(self) -> None:
        self.requests = self.counted = self.rounds = self.accepted = 0

    def count(self, ended: Sequence[Any]) -> None:
        """Count those of SGLang's requests that ended and whose end is not answered yet, each once.

        They have `spec_verify_ct`, `spec_num_correct_drafts` and `sampling_params`.
        """
        self.requests += len(ended)
        self.counted += sum(is_counted(req.sampling_params) for req in ended)
        self.rounds += sum(req.spec_verify_ct for req in ended)
        self.accepted += sum(req.spec_num_correct_drafts for req in ended)
