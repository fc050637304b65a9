"""Reads a run that has ended: a Redis is started once more on the file that the run's own one left.

So a run need not report anything by itself, whichever revision it was of: readers know the traces and events of older
releases.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ...buffer.base import TraceEntry, entry_order
from ...buffer.config import BufferConfig
from ...buffer.redis_board import RedisVersionBoard
from ...buffer.redis_client import connect
from ...buffer.redis_stream import RedisTraceBuffer
from ...buffer.scores import JUDGED_SCORE, PREDICTED_SCORE, PREDICTED_STANDARD_ERROR
from ...buffer.settings.table import BY_NAME
from ...buffer.trace import DraftTrace
from ...buffer.version import BoardState
from ...learner.claim.intake import is_held_out
from ...learner.judging import paired_replay
from ...learner.model.draft_cache import DraftCache
from ...learner.model.draft_io import load_target_embedding
from ...learner.round.prediction import MOST_REQUESTS
from ...policies.acceptance import Tally, served_by_request
from ...policies.readings.traffic_move import moved_share
from ...rig.deployment import DRAFT_STEPS, SPECULATOR
from ...rig.models.target import TargetModel
from ...rig.ports import free_port
from ...rig.services import redis_service
from .recorded_run import Conditions, RecordedRun, ServedRequest, ServedVersion

#: How many versions before another one that is whose draft watches the traffic meanwhile: some ninety requests of the
#: demo earlier.
_WATCHES_AFTER = 3
#: What the gate that judged by held-out requests alone called the figure that it put on the board.
_HELD_OUT_SCORE = "holdout_accept_length"
_INITIAL = 0
_HOLDOUT_SHARE: float = BY_NAME["HOLDOUT_SHARE"].default
_PATIENCE_S = 30.0  # a page of traces is large
_ALL = 1 << 30


def recorded(data_dir: Path, target: TargetModel, conditions: Conditions, seconds: float) -> RecordedRun:
    """What the only run below `data_dir` left. SystemExit when it served another target."""
    state, published, entries = board_and_traces(data_dir)
    targets = {entry.trace.target_version for entry in entries}
    if targets != {target.key}:
        raise SystemExit(f"{data_dir}: got traces of targets {sorted(targets)}, expected {target.key} alone")
    requests = served_requests([entry.trace for entry in entries])
    return RecordedRun(
        conditions,
        state.rows[_INITIAL].version.sha256,
        requests,
        conditions.requests - len(requests),
        served_versions(state, published, entries, target),
        len(state.rows),
        round(seconds, 1),
    )


def board_and_traces(data_dir: Path) -> tuple[BoardState, dict[int, str], list[TraceEntry]]:
    """Of the only run below `data_dir`: its board, the id of the event that published each version, and all traces.

    Ids of events and traces are of one clock. Blocks while Redis reads its file.
    """
    folders = sorted(data_dir.glob("runs/*/redis"))
    if len(folders) != 1:
        raise SystemExit(f"{data_dir}: got {len(folders)} runs with a Redis, expected one; remove the folder")
    port = free_port()
    with redis_service(folders[0], port):
        client = connect(f"redis://127.0.0.1:{port}/0", timeout_s=_PATIENCE_S)
        config = BufferConfig(speculator=SPECULATOR)
        try:
            buffer = RedisTraceBuffer(client, config)
            board = RedisVersionBoard(client, config)
            published = {event.number: event.event_id for event in board.events() if event.version is not None}
            return board.read(), published, list(buffer.replay(_ALL))
        finally:
            client.close()


def served_requests(traces: Sequence[DraftTrace]) -> tuple[ServedRequest, ...]:
    """What was accepted of every request, in the order sent; ids are as rig/prompts.py numbers them."""
    ids = list(dict.fromkeys(trace.request_id for trace in traces))
    found = []
    for name, tally in zip(ids, served_by_request(traces), strict=True):
        domain, _, number = name.rpartition("-")
        found.append(ServedRequest(int(number), domain, tally))
    return tuple(sorted(found, key=lambda request: request.number))


def served_versions(
    state: BoardState, published: Mapping[int, str], entries: Sequence[TraceEntry], target: TargetModel
) -> tuple[ServedVersion, ...]:
    """Versions that served, but for the one at the start, which nothing was predicted of; replays each of them."""
    drafts = DraftCache(load_target_embedding(target.folder), torch.device("cpu"))
    found = []
    for number in sorted({entry.trace.draft_version for entry in entries} & state.rows.keys() - {_INITIAL}):
        scores = state.rows[number].version.scores
        figures = (scores[name] for name in (PREDICTED_SCORE, _HELD_OUT_SCORE, JUDGED_SCORE) if name in scores)
        judged = unlearnt(state, number, published[number], entries)
        served = [each.trace for each in entries if each.trace.draft_version == number]
        found.append(
            ServedVersion(
                number,
                replayed(drafts, state, number, judged),
                tuple(served_by_request(served)),
                replayed(drafts, state, number - _WATCHES_AFTER, watched(state, number, entries)),
                moved_share(by_domain(judged), by_domain(served)) if judged else None,
                next(figures, None),
                scores.get(PREDICTED_STANDARD_ERROR),
            )
        )
    return tuple(found)


def by_domain(traces: Sequence[DraftTrace]) -> Counter[str]:
    """Requests of each domain, by the names that rig/prompts.py gives them."""
    return Counter(name.rpartition("-")[0] for name in {trace.request_id for trace in traces})


def unlearnt(state: BoardState, number: int, published: str, entries: Sequence[TraceEntry]) -> list[DraftTrace]:
    """What a version could be predicted by, much as a learner chooses it: the newest requests when it was published.

    They came after the last one that it was trained on, or were held out since the version before it.
    """
    last = entry_order(state.rows[number].version.trained_on[1])
    earlier = [row.version.trained_on[1] for row in state.rows.values() if row.version.number < number]
    before = max((entry_order(each) for each in earlier if each), default=(0, 0))
    came = [
        entry.trace
        for entry in entries
        if before < entry_order(entry.entry_id) < entry_order(published)
        and (entry_order(entry.entry_id) > last or is_held_out(entry.trace.request_id, _HOLDOUT_SHARE))
    ]
    newest = set(list(dict.fromkeys(trace.request_id for trace in reversed(came)))[:MOST_REQUESTS])
    return [trace for trace in came if trace.request_id in newest]


def watched(state: BoardState, number: int, entries: Sequence[TraceEntry]) -> list[DraftTrace]:
    """What came since the last trace of an earlier version, up to the last one that version `number` served.

    Empty where the draft of the start is that version: it may be a random one, of which nothing is ever accepted.
    """
    watcher = state.rows.get(number - _WATCHES_AFTER)
    if watcher is None or watcher.version.number <= _INITIAL:
        return []
    first = entry_order(watcher.version.trained_on[1])
    last = max(entry_order(entry.entry_id) for entry in entries if entry.trace.draft_version == number)
    return [entry.trace for entry in entries if first < entry_order(entry.entry_id) <= last]


def replayed(drafts: DraftCache, state: BoardState, number: int, traces: Sequence[DraftTrace]) -> tuple[Tally, ...]:
    """By request, what version `number` would have had accepted; SystemExit without its weights."""
    if not traces:
        return ()
    draft = drafts.draft(state, number)
    if draft is None:
        raise SystemExit(f"version {number}: got no weights, expected those of every version; remove the run")
    return tuple(by_request(traces, paired_replay.tallies(draft, traces, DRAFT_STEPS)))


def by_request(traces: Sequence[DraftTrace], found: dict[str, Tally]) -> list[Tally]:
    """Tallies of traces by their id, added up by request, in the order requests first come."""
    sums: dict[str, Tally] = {}
    for trace in traces:
        sums[trace.request_id] = sums.get(trace.request_id, Tally()) + found[trace.trace_id]
    return list(sums.values())
