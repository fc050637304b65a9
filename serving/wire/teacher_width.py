"""How many of the target's choices are recorded per verified node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TeacherWidth:
    """Teacher entries per verified node, by how the request is served."""

    sampled: int
    greedy: int = 1  # its verdicts compare with the best token, and so do its labels

    def of(self, is_greedy: bool) -> int:
        """Entries of one request's nodes."""
        return self.greedy if is_greedy else self.sampled
