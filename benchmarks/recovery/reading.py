"""Reads a run that has ended: a Redis is started once more on the file that the run's own one left.

So a run need not report anything by itself, whichever revision it was of: readers know the traces and events of older
releases.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from ...buffer.base import TraceEntry, entry_order
from ...buffer.config import BufferConfig
from ...buffer.redis_board import RedisVersionBoard
from ...buffer.redis_client import connect
from ...buffer.redis_stream import RedisTraceBuffer
from ...buffer.settings.table import BY_NAME
from ...buffer.trace import DraftTrace
from ...buffer.version import JUDGED_SCORE, JUDGED_STANDARD_ERROR, BoardState, DraftVersion
from ...learner.intake import is_held_out
from ...learner.judging import paired_replay
from ...learner.model.draft_cache import DraftCache
from ...learner.model.draft_io import load_target_embedding
from ...policies.acceptance import Tally, served_by_request
from ...rig.deployment import DRAFT_STEPS, SPECULATOR
from ...rig.models.target import TargetModel
from ...rig.services import free_port, redis_service
from .recorded_run import Conditions, RecordedRun, ServedRequest, ServedVersion

#: Held-out requests that a version is judged on, the newest ones: as many as the gate took that judged by them alone.
JUDGED_REQUESTS = 48
#: What that gate called the figure that it put on the board.
_HELD_OUT_SCORE = "holdout_accept_length"
_INITIAL = 0
_HOLDOUT_SHARE: float = BY_NAME["HOLDOUT_SHARE"].default
_PATIENCE_S = 30.0  # a page of traces is large
_ALL = 1 << 30


def recorded(data_dir: Path, target: TargetModel, conditions: Conditions, seconds: float) -> RecordedRun:
    """What the only run below `data_dir` left. SystemExit when it served another target."""
    state, entries = board_and_traces(data_dir)
    targets = {entry.trace.target_version for entry in entries}
    if targets != {target.key}:
        raise SystemExit(f"{data_dir}: got traces of targets {sorted(targets)}, expected {target.key} alone")
    requests = served_requests([entry.trace for entry in entries])
    return RecordedRun(
        conditions,
        state.rows[_INITIAL].version.sha256,
        requests,
        conditions.requests - len(requests),
        served_versions(state, entries, target),
        len(state.rows),
        round(seconds, 1),
    )


def board_and_traces(data_dir: Path) -> tuple[BoardState, list[TraceEntry]]:
    """Board and traces, oldest first, of the only run below `data_dir`; blocks while Redis reads its file."""
    folders = sorted(data_dir.glob("runs/*/redis"))
    if len(folders) != 1:
        raise SystemExit(f"{data_dir}: got {len(folders)} runs with a Redis, expected one; remove the folder")
    port = free_port()
    with redis_service(folders[0], port):
        client = connect(f"redis://127.0.0.1:{port}/0", timeout_s=_PATIENCE_S)
        config = BufferConfig(speculator=SPECULATOR)
        try:
            buffer = RedisTraceBuffer(client, config)
            return RedisVersionBoard(client, config).read(), list(buffer.replay(_ALL))
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


def served_versions(state: BoardState, entries: Sequence[TraceEntry], target: TargetModel) -> tuple[ServedVersion, ...]:
    """Versions that served, but for the one at the start, which nothing was predicted of; replays each of them."""
    drafts = DraftCache(load_target_embedding(target.folder), torch.device("cpu"))
    found = []
    for number in sorted({entry.trace.draft_version for entry in entries} & state.rows.keys() - {_INITIAL}):
        version, draft = state.rows[number].version, drafts.draft(state, number)
        if draft is None:
            raise SystemExit(f"version {number}: got no weights, expected those of every version; remove the run")
        sample = judging(version, entries)
        replayed = paired_replay.tallies(draft, sample, DRAFT_STEPS)
        served = [entry.trace for entry in entries if entry.trace.draft_version == number]
        on_board = version.scores.get(JUDGED_SCORE, version.scores.get(_HELD_OUT_SCORE))
        samples = tuple(by_request(sample, replayed)), tuple(served_by_request(served))
        found.append(ServedVersion(number, *samples, on_board, version.scores.get(JUDGED_STANDARD_ERROR)))
    return tuple(found)


def judging(version: DraftVersion, entries: Sequence[TraceEntry]) -> list[DraftTrace]:
    """Traces of the newest JUDGED_REQUESTS held-out requests that had come when the version was trained."""
    last = entry_order(version.trained_on[1])
    known = [
        entry.trace
        for entry in entries
        if entry_order(entry.entry_id) <= last and is_held_out(entry.trace.request_id, _HOLDOUT_SHARE)
    ]
    newest = list(dict.fromkeys(trace.request_id for trace in reversed(known)))[:JUDGED_REQUESTS]
    return [trace for trace in known if trace.request_id in newest]


def by_request(traces: Sequence[DraftTrace], found: dict[str, Tally]) -> list[Tally]:
    """Tallies of traces by their id, added up by request, in the order requests first come."""
    sums: dict[str, Tally] = {}
    for trace in traces:
        sums[trace.request_id] = sums.get(trace.request_id, Tally()) + found[trace.trace_id]
    return list(sums.values())
