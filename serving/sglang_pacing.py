"""Pacing inside SGLang's scheduler: paceline's policy on the seat of SGLang's own adaptive one.

On tensor-parallel ranks every rank chooses for itself, and all must choose alike or the server hangs in its next
collective. Costs by a rank's own clock would differ, so several ranks take them from a table, the same file for all;
accepted drafts and swaps are the same on every rank by themselves.
"""

import logging
from collections.abc import Mapping
from typing import Any

from ..buffer.errors import ConfigError
from .config import PacingName
from .paced_steps import PacedSteps
from .pacing_choice import COSTED, build_policy, load_table

log = logging.getLogger(__name__)

#: SGLang says every switch of the number of steps at level INFO; paced, that may be a line per decode step.
_SWITCH_LOG, _SWITCH_LINE = "sglang.srt.speculative.eagle_worker_v2", "Switch adaptive runtime state"


class SglangPacing:
    """Hook bodies, and the paced steps once SGLang has built its adaptive controller. One per scheduler process.

    Whatever cannot be set up leaves SGLang's own rule in place, with the reason in the log and in the reading.
    """

    def __init__(self, name: PacingName, costs_file: str) -> None:
        self._name, self._costs_file = name, costs_file
        self._reason = "the server runs without --speculative-adaptive"
        self._paced: PacedSteps | None = None

    def before_controller(
        self, controller: Any, worker: Any, policy: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """BEFORE AdaptiveController.__init__(self, worker, policy); every rank, before any step runs."""
        try:
            self._paced = self._seat(worker, policy)
        except Exception as fault:  # whatever it is, SGLang's own rule can go on
            self._reason = str(fault) if isinstance(fault, ConfigError) else f"{type(fault).__name__}: {fault}"
            log.error("paceline: pacing is off, SGLang's own rule stays: %s", self._reason)  # noqa: TRY400 - same
            if self._costs_file and worker.server_args.tp_size > 1:
                raise  # on this rank alone, perhaps: ranks that choose differently would hang the server later
            return None
        logging.getLogger(_SWITCH_LOG).addFilter(_is_no_switch)
        log.warning("paceline: pacing by %s over %s draft steps", self._name, self._paced.candidate_steps)
        return (controller, worker, self._paced), {}

    def before_forward(self, _worker: Any, batch: Any, *_: Any, **__: Any) -> None:
        """BEFORE EAGLEWorkerV2.forward_batch_generation: a prefill's time is nobody's decode step."""
        if self._paced is not None and batch.forward_mode.is_extend():
            self._paced.interrupt()

    def draft_changed(self) -> None:
        """Other weights draft from here on; scheduler thread, every rank between the same two steps."""
        if self._paced is not None:
            self._paced.draft_changed()

    def reading(self) -> Mapping[str, object]:
        """For the replica's heartbeat, as JSON values; any thread may ask."""
        if self._paced is None:
            return {"policy": "off", "reason": self._reason}
        return {"policy": str(self._name), **self._paced.reading()}

    def _seat(self, worker: Any, policy: Any) -> PacedSteps:
        lengths, static_steps = sorted(policy.candidate_steps), worker.speculative_num_steps
        table, is_alone = load_table(self._costs_file), worker.server_args.tp_size == 1
        if self._name in COSTED and table is None and not is_alone:
            raise ConfigError(
                f"PACELINE_PACING={self._name} with --tp-size {worker.server_args.tp_size}: got no "
                "PACELINE_PACING_COSTS, expected a table of step costs, since every rank has its own clock; "
                "PACELINE_PACING=sweep measures one"
            )
        chosen = build_policy(self._name, lengths, static_steps, table)
        rank_costs = None if is_alone else table
        return PacedSteps(chosen, lengths, static_steps, rank_costs, is_by_size=self._name is PacingName.SWEEP)


def _is_no_switch(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_SWITCH_LINE)
