"""What a learner keeps in memory between two learning rounds.

Nothing here is the only copy: weights and notes come from the checkpoint, traces from the buffer, versions from
the board. So after any fault in a learning round the state is thrown away and opened again; see recovery.py.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ...buffer.board.counters import MODEL_FREE
from ...buffer.board.version import BoardState, DraftVersion, VersionState
from ...buffer.stream.trace import DraftTrace
from ...buffer.stream.trace_buffer import TraceBuffer, TraceEntry, entry_order
from ...policies.acceptance import served_by_request
from ...policies.learn_schedule import LearnDecision, LearnSchedule
from ...policies.line_delivery import Ground, LineDelivery
from ...policies.model_free.comparison import ModelFree
from ...policies.promotion import Promotion, Verdict
from ...policies.target_history import TargetHistory
from ...policies.trace_weighting import is_expired
from ..claim.intake import KEPT, ByOutcome, Intake, Outcome, sort_entries
from ..claim.recomputed import with_features
from ..config import LearnerConfig
from ..judging.calibration import Calibration, compare_with_served
from ..judging.line_judge import LastLearnt, LineJudge, Unlearnt
from ..model.draft_cache import DraftCache
from ..model.target_features import TargetFeatures
from ..training.plan import PassBudget, TrainingPlan
from ..training.trainer import DraftTrainer, FitReport
from .checkpoint import LearnerNotes

_log = logging.getLogger(__name__)


class ReplayBuffer:
    """Traces to learn again, oldest first, and the ids of those held out; the oldest leave when it is full."""

    def __init__(self, *, most_traces: int, most_held_out: int) -> None:
        self._entries: deque[TraceEntry] = deque(maxlen=most_traces)
        self._held_out_ids: deque[str] = deque(maxlen=most_held_out)

    def __iter__(self) -> Iterator[TraceEntry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_out_ids(self) -> tuple[str, ...]:
        """Trace ids, oldest first."""
        return tuple(self._held_out_ids)

    @property
    def known_ids(self) -> set[str]:
        """Ids of traces that are here or were held out: one that is sent again is a duplicate."""
        return {entry.trace.trace_id for entry in self._entries} | set(self._held_out_ids)

    def take(self, entries: Iterable[TraceEntry]) -> None:
        """Add traces that were learned or have rested."""
        self._entries.extend(entries)

    def remember_held_out(self, entries: Iterable[TraceEntry]) -> None:
        """Remember that these were held out; they are never learned."""
        self._held_out_ids.extend(entry.trace.trace_id for entry in entries)

    def drop_unless(self, is_kept: Callable[[DraftTrace], bool]) -> None:
        """Keep only traces that `is_kept` says yes to."""
        kept = [entry for entry in self._entries if is_kept(entry.trace)]
        self._entries.clear()
        self._entries.extend(kept)


class LearnerState:
    """All that one learner changes from round to round. Belongs to the worker's thread.

    The loop and the round read it, and tell it what happened; nobody else sets anything in it. The trainer steps its
    own weights, and the line of drafts being trained is judged by the LineJudge that `line_judge` gives.
    """

    def __init__(
        self,
        *,
        config: LearnerConfig,
        trainer: DraftTrainer,
        notes: LearnerNotes,
        drafts: DraftCache,
        targets: TargetHistory,
        target_features: TargetFeatures | None = None,
    ) -> None:
        """Go on from `notes`, with an empty replay buffer; without `target_features`, nothing is recomputed."""
        self.config = config
        self.drafts = drafts
        self.targets = targets
        self.target_features = target_features
        self.model_free = ModelFree(time.thread_time)
        self.schedule = LearnSchedule(config.learn_rules)
        self.schedule.restore(notes.schedule)
        self.replay_buffer = ReplayBuffer(most_traces=config.replay_traces, most_held_out=config.remembered_held_out)
        self._trainer = trainer
        self._notes = notes
        self._pass_budget = PassBudget(config.passes, config.training_share)

    @property
    def trainer(self) -> DraftTrainer:
        """The trainer of the line's newest draft."""
        return self._trainer

    @property
    def notes(self) -> LearnerNotes:
        """What the next checkpoint is made of."""
        return self._notes

    @property
    def saved_notes(self) -> LearnerNotes:
        """The notes of the next checkpoint: without the digests of prompts where nothing of these may reach a disk."""
        return replace(self._notes, last_learnt={}) if self.config.buffer.keeps_nothing else self._notes

    @property
    def _read_back_traces(self) -> int:
        """Stored traces read back at a start: twice what is kept, since some were refused."""
        return 2 * (self.config.replay_traces + self.config.remembered_held_out)

    def matches_board(self, board_state: BoardState) -> bool:
        """Return whether the board has the version these weights continue from; one that lost its data has not."""
        return bool(board_state.rows) and self.notes.parent in {None, *board_state.rows}

    def read_back(self, buffer: TraceBuffer) -> None:
        """Fill the replay buffer at a start with traces that were acked. Blocks on the buffer and on the target."""
        set_aside = set(self.notes.set_aside)
        stored = list(buffer.replay(self._read_back_traces, acked_only=True))
        if self.targets.newest is None:  # a history that goes on has counted them
            self.follow(stored)
        found = self.sort([entry for entry in stored if entry.entry_id not in set_aside])
        learned = found[Outcome.LEARNED][-self.config.replay_traces :]
        kept, _ = with_features(learned, self.target_features)  # the others were counted when they were acked
        self.replay_buffer.take(kept)
        self.model_free.remember(entry.trace for entry in kept)
        self.replay_buffer.remember_held_out(found[Outcome.HELD_OUT])

    def sort(self, entries: Sequence[TraceEntry]) -> ByOutcome:
        """Give each entry its outcome; a trace that is in the replay buffer, or was held out, is a duplicate."""
        config = self.config
        sizes = self.trainer.draft.config
        intake = Intake(
            target=config.target,
            target_versions=self.targets.trained,
            holdout_share=config.holdout_share,
            feature_width=sizes.feature_width,
            vocabulary=sizes.vocab_size,
            ttl_s=config.trace_ttl_s,
            now_s=time.time(),
            judging_versions=self.targets.judging,
            recomputed_version=config.recomputed_version,
        )
        return sort_entries(entries, intake, self.replay_buffer.known_ids)

    def follow(self, entries: Sequence[TraceEntry]) -> None:
        """See in `entries`, before they get outcomes, which versions the target has, where the learner follows it.

        Traces of versions that are too old now leave the replay buffer; they were counted when acked.
        """
        before = self.targets.newest
        target = self.config.target
        traces = ((entry_order(entry.entry_id), entry.trace) for entry in entries)
        self.targets.observe((place, trace.target_version) for place, trace in traces if trace.target == target)
        self.trainer.target_versions = self.targets.trained
        self.replay_buffer.drop_unless(lambda trace: trace.target_version in self.targets.trained)
        if self.targets.newest != before:
            _log.info("the target has version %s; trained on are %s", self.targets.newest, self.targets.trained)

    def drop_expired(self, now_s: float) -> None:
        """Drop traces past their time to live from the replay buffer; they were counted when acked."""
        self.replay_buffer.drop_unless(lambda trace: not is_expired(trace.born_at, now_s, self.config.trace_ttl_s))

    def record_targets(self) -> bool:
        """Note which versions of the target were seen; return whether that is news, which a checkpoint should have."""
        notes = replace(self.notes, targets=self.targets.state())
        is_news = notes != self.notes
        self._notes = notes
        return is_news

    def decide(self, claimed: ByOutcome, now_s: float) -> LearnDecision:
        """Show the schedule the kept traces of `claimed`, oldest first, and ask it whether to learn."""
        self.schedule.observe(served_by_request(self.judging_traces(claimed)))
        return self.schedule.decide(now_s)

    def compare(self, claimed: ByOutcome, board_state: BoardState) -> Calibration:
        """Replay the kept traces of `claimed` and compare with what was served."""
        return compare_with_served(self.judging_traces(claimed), board_state, self.drafts)

    def record_verdict(self, fit: FitReport, promotion: Promotion, now_s: float) -> None:
        """Report the gate's verdict on a learning round that trained to the schedule: a proof is a better draft.

        A round of which no request judged, such as one of further parts of known answers, shows nothing either way.
        """
        is_judged = promotion.verdict in {Verdict.PROMOTE, Verdict.REFUSE} and promotion.measured is not None
        is_better = promotion.ground is Ground.PROOF if is_judged else None
        self.schedule.record_learning(now_s, is_better=is_better, is_warm=not fit.is_cold)

    def record_rollback(self, board_state: BoardState, now_s: float) -> None:
        """Report to the schedule when the version these weights were last published as has been rolled back."""
        row = board_state.rows.get(self.notes.parent) if self.notes.parent is not None else None
        if row is not None and row.state is VersionState.ROLLED_BACK:
            self.schedule.record_rollback(now_s)

    def line_judge(self, board_state: BoardState) -> LineJudge | None:
        """The judge of a learning round about to train; None without a live version whose weights can be read.

        The line goes on from the notes. It starts over with the live version where another one is live than was last
        decided to serve, or where the reference cannot be read.
        """
        live = board_state.live
        live_draft = None if live is None else self.drafts.draft(board_state, live)
        if live is None or live_draft is None:
            return None
        line = LineDelivery(self.config.delivery_rules, live)
        line.restore(self.notes.line)
        reference = self.drafts.draft(board_state, line.reference) if line.reference in board_state.rows else None
        if line.serves != live or reference is None:
            _log.info("version %d is live: the line is compared with it from now on", live)
            line = LineDelivery(self.config.delivery_rules, live)
            reference = live_draft
        _, last = board_state.rows[line.reference].version.trained_on
        last_learnt = LastLearnt(self.notes.last_learnt)
        known = frozenset(entry.trace.request_id for entry in self.replay_buffer) | last_learnt.requests
        unlearnt = Unlearnt(self.targets.judging, last, known)
        return LineJudge(
            delivery=line,
            live=live,
            live_draft=live_draft,
            reference=line.reference,
            reference_draft=reference,
            unlearnt=unlearnt,
            last_learnt=last_learnt,
            steps=self.trainer.plan.steps,
            is_line_live=live == self.notes.parent,
        )

    def begin_fit(self, traces: int) -> None:
        """Have the trainer pass over so many claimed traces as often as there is time for."""
        self._trainer.plan = replace(self._trainer.plan, passes=self._pass_budget.begin(traces))

    def record_fit(self, traces: int, fit: FitReport) -> None:
        """Note how long the fit that `begin_fit` began has taken."""
        self._pass_budget.end(traces, self._trainer.plan.passes, fit.seconds)

    def record_learning(
        self,
        *,
        claimed: ByOutcome,
        calibration: Calibration,
        fit: FitReport | None,
        version: DraftVersion | None,
        judge: LineJudge | None,
    ) -> None:
        """Take what was learned into the replay buffer, and note it; `version` is what the round published.

        Without a `judge`, since no version is live, there is no line to go on from.
        """
        self._record(claimed, calibration)
        self.replay_buffer.take(claimed[Outcome.LEARNED])
        self._notes = replace(
            self.notes,
            rounds_trained=self.notes.rounds_trained + 1,
            optimiser_steps=self.notes.optimiser_steps + (fit.steps if fit else 0),
            parent=version.number if version else self.notes.parent,
            line=judge.delivery.state() if judge else {},
            last_learnt=judge.last_learnt.state() if judge else self.notes.last_learnt,
        )

    def record_rest(self, claimed: ByOutcome, calibration: Calibration) -> None:
        """Take what has rested into the replay buffer, where learning will find it, and note it."""
        self._record(claimed, calibration)
        self.replay_buffer.take(claimed[Outcome.RESTED])
        self._notes = replace(self.notes, rounds_rested=self.notes.rounds_rested + 1)

    def record_set_aside(self, claimed: ByOutcome, calibration: Calibration) -> None:
        """Update the notes after a claim of which nothing was kept; a restart must not read those traces back."""
        self._record(claimed, calibration)
        now = [entry.entry_id for entry in claimed[Outcome.MISREPLAYED]]
        self._notes = replace(
            self.notes,
            rounds_rested=self.notes.rounds_rested + 1,
            set_aside=[*self.notes.set_aside, *now][-self._read_back_traces :],
            settled={Outcome.MISREPLAYED.value: now},
        )

    def _record(self, claimed: ByOutcome, calibration: Calibration) -> None:
        notes = self.notes
        self.replay_buffer.remember_held_out(claimed[Outcome.HELD_OUT])
        self._notes = replace(
            notes,
            equal=notes.equal + calibration.equal,
            compared=notes.compared + calibration.compared,
            excess=notes.excess + calibration.excess,
            settled={outcome.value: [entry.entry_id for entry in claimed[outcome]] for outcome in KEPT},
            schedule=self.schedule.state(),
            targets=self.targets.state(),
        )

    def judging_traces(self, claimed: ByOutcome) -> list[DraftTrace]:
        """Kept traces whose verdicts measure a draft, oldest first; see TargetHistory.judging."""
        kept = sorted(
            (entry for outcome in KEPT for entry in claimed[outcome]), key=lambda entry: entry_order(entry.entry_id)
        )
        return [entry.trace for entry in kept if entry.trace.target_version in self.targets.judging]

    def match_draft_steps(self, entries: Sequence[TraceEntry]) -> None:
        """Unroll as many steps as the widest drafted chain of `entries`, unless the settings fix the number.

        When the number changes, weights and learning-rate regime (cold or warm) stay; the optimiser starts afresh.
        """
        drafted = [entry.trace for entry in entries if entry.trace.draft_version != MODEL_FREE]
        widths = [trace.rounds.drafted.shape[1] for trace in drafted if len(trace.rounds)]
        steps = self.config.draft_steps or max(widths, default=0)
        if steps and steps != self.trainer.plan.steps:
            self.trainer.target_versions = self.targets.trained
            self._trainer = with_plan(self.trainer, replace(self.trainer.plan, steps=steps))
            self._notes = replace(self.notes, draft_steps=steps)


def with_plan(trainer: DraftTrainer, plan: TrainingPlan) -> DraftTrainer:
    """A trainer of the same draft by another plan: weights and regime stay, the optimiser starts afresh."""
    found = DraftTrainer(trainer.draft, plan, target_versions=trainer.target_versions)
    found.keep_regime(trainer)
    return found
