"""What a draft about to serve should have accepted: its own weights, replayed on requests it learnt nothing of.

The newest requests stand for those that follow. Where traffic changes in between the prediction fails, and no interval
holds that.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from .acceptance import Tally
from .readings.ratio_sums import Z_95, ratio_standard_error


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of the accept length, bonus token included."""

    accept_length: float
    standard_error: float  # prompts drawn as wholes
    requests: int

    @property
    def figures(self) -> dict[str, float]:
        """For a reason; the noise is half of the 95 % interval."""
        noise = Z_95 * self.standard_error
        return {"predicted": self.accept_length, "predicted_noise": noise, "predicted_requests": self.requests}


def prediction(replayed: Iterable[tuple[Hashable, str, Tally]]) -> Prediction | None:
    """Pooled over traces, (prompt, request id, tally) each; None where prompts are too few for a standard error.

    Traces without rounds do not count. Prompts are what is drawn, since answers to one prompt resemble each other.
    """
    by_prompt = defaultdict[Hashable, Tally](Tally)
    requests = set[str]()
    for prompt, request, tally in replayed:
        if tally.rounds:
            by_prompt[prompt] += tally
            requests.add(request)
    rounds = [each.rounds for each in by_prompt.values()]
    accepted = [each.accepted for each in by_prompt.values()]
    error = ratio_standard_error(
        len(by_prompt),
        rounds=sum(rounds),
        accepted=sum(accepted),
        rounds_squared=_dot(rounds, rounds),
        rounds_accepted=_dot(rounds, accepted),
        accepted_squared=_dot(accepted, accepted),
    )
    return None if error is None else Prediction(1.0 + sum(accepted) / sum(rounds), error, len(requests))


def _dot(ones: Sequence[float], others: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(ones, others, strict=True))
