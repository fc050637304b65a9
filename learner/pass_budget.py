"""How often a learning round passes over its traces: less often where training could not keep up with traffic.

A learner that trains for nearly as long as its traces take to come claims more of them with every learning round, which
then takes longer still: its drafts come late, learnt from traffic of a while ago. With passes fewer it stays close.
"""

import time
from collections.abc import Callable


class PassBudget:
    """Decides on passes by how long the last learning round took for each; not for use from two threads.

    `share` is how much of the time between two learning rounds training may take; 0: any. `clock` gives seconds, of
    which only differences matter.
    """

    def __init__(self, most: int, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._share, self._clock = most, share, clock
        self._began_s: float | None = None
        self._pass_s: float | None = None  # of one trace

    def begin(self, traces: int) -> int:
        """How often a learning round that trains from now on passes over its `traces`: 1 to `most` times.

        `most` times in the first one, of which nothing is known.
        """
        now_s, began_s = self._clock(), self._began_s
        self._began_s = now_s
        if not self._share or began_s is None or not self._pass_s:
            return self._most
        affordable = self._share * (now_s - began_s) / (traces * self._pass_s)
        return min(max(round(affordable), 1), self._most)

    def end(self, traces: int, passes: int, seconds: float) -> None:
        """Training passed over `traces` so many times in `seconds`."""
        self._pass_s = seconds / (traces * passes)
