"""Pacing inside SGLang's scheduler: paceline's policy in place of SGLang's own adaptive one.

On tensor-parallel ranks every rank chooses for itself, and all must choose alike or the server hangs in its next
collective. Costs by a rank's own clock would differ, so several ranks take them from a table, the same file for all;
accepted drafts and swaps are the same on every rank anyway.
"""

import logging
import zlib
from collections.abc import Callable
from typing import Any

from ...buffer.board.member_status import PacingSaid
from ...buffer.errors import ConfigError
from ...buffer.settings.kinds import PacingName
from ...policies.pacing.goodput import GoodputPacing
from ...policies.pacing.policy import SweepPacing
from .. import sglang_ranks
from ..clock.step_meter import Meter
from .adaptive_policy import PacelineAdaptivePolicy
from .costs_file import read_costs, table_of

log = logging.getLogger(__name__)

#: SGLang logs every switch of the number of steps at level INFO; with pacing, that may be a line per decode step.
_SWITCH_LOG = "sglang.srt.speculative.eagle_worker_v2"
_SWITCH_LINE = "Switch adaptive runtime state"


class SglangPacing:
    """Hook bodies, and the policy once SGLang builds its adaptive controller. One per scheduler process.

    When anything cannot be set up, SGLang's own rule stays, with the reason in the log and in the status.
    """

    def __init__(
        self,
        name: PacingName,
        costs_file: str,
        ranks: Callable[[], int] = sglang_ranks.count,
        meter: Meter | None = None,
    ) -> None:
        """`meter` times the steps of this process; without one, the policy does that itself."""
        self._name = name
        self._ranks = ranks
        self._meter = meter
        self._sweeps = name is PacingName.SWEEP
        self._costs_file = "" if self._sweeps else costs_file  # a sweep is what makes the file
        self._reason = "the server runs without --speculative-adaptive"
        self._paced: PacelineAdaptivePolicy | None = None

    def before_controller(
        self, controller: Any, worker: Any, policy: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """BEFORE AdaptiveController.__init__(self, worker, policy); every rank, before any step runs.

        Blocks until every rank has called it, and paces on all of them or on none.
        """
        paced = None
        costs = b""
        is_agreed = False
        try:
            costs = read_costs(self._costs_file)
            paced = self._policy(worker, policy, costs)
        except Exception as fault:  # noqa: BLE001 - SGLang's own rule can stay
            self._reason = str(fault) if isinstance(fault, ConfigError) else f"{type(fault).__name__}: {fault}"
        try:
            is_agreed = self._ranks_agree(costs, is_paced=paced is not None)
        except Exception as fault:  # noqa: BLE001 - SGLang's own rule can stay
            self._reason = f"{type(fault).__name__}: {fault}"
        if paced is None or not is_agreed:
            log.error("paceline: pacing is off, SGLang's own rule stays: %s", self._reason)
            return None
        self._paced = paced
        logging.getLogger(_SWITCH_LOG).addFilter(_is_no_switch)
        log.warning("paceline: pacing by %s over %s draft steps", self._name, paced.candidate_steps)
        return (controller, worker, paced), {}

    def _ranks_agree(self, costs: bytes, *, is_paced: bool) -> bool:
        """Whether all ranks can pace, by one policy and one table: others would choose differently, and hang.

        Every rank calls it, whatever its own state, and nothing that can fail on one rank alone comes before the vote.
        """
        if self._ranks() == 1:
            return is_paced
        choice = zlib.crc32(f"{is_paced} {self._name} ".encode() + costs)
        is_same = sglang_ranks.is_same_on_all(choice)
        if is_paced and not is_same:
            self._reason = "another rank cannot pace, or has another setting or table of step costs; see its log"
        return is_paced and is_same

    def before_forward(self, _worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE EAGLEWorkerV2.forward_batch_generation: a prefill's time belongs to no decode step."""
        paced = self._paced
        if paced is None:
            return
        try:
            if batch.forward_mode.is_extend():
                paced.interrupt()
        except Exception as fault:  # noqa: BLE001 - an exception leaving a hook would kill SGLang's scheduler
            paced.end(fault)

    def draft_changed(self) -> None:
        """Other weights draft from now on; scheduler thread, every rank between the same two steps."""
        if self._paced is not None:
            self._paced.draft_changed()

    def said(self) -> PacingSaid:
        """For the replica's heartbeat; any thread may ask."""
        if self._paced is None:
            return PacingSaid(policy="off", reason=self._reason)
        said = self._paced.said()
        said.policy = self._name.value
        return said

    def _policy(self, worker: Any, policy: Any, costs: bytes) -> PacelineAdaptivePolicy:
        lengths = sorted(policy.candidate_steps)
        static_steps = worker.speculative_num_steps
        table = table_of(costs, self._costs_file)
        ranks = self._ranks()
        if not self._sweeps and table is None and ranks > 1:
            raise ConfigError(
                f"PACELINE_PACING={self._name} with --tp-size {ranks}: got no PACELINE_PACING_COSTS, expected a table "
                "of step costs, since every rank has its own clock; `paceline pacing-costs` measures one"
            )
        return PacelineAdaptivePolicy(
            SweepPacing(lengths) if self._sweeps else GoodputPacing(lengths, table),
            lengths,
            static_steps,
            None if ranks == 1 else table,
            reports_per_batch_size=self._sweeps,
            meter=self._meter,
        )


def _is_no_switch(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_SWITCH_LINE)
