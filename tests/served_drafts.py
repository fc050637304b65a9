"""What every kind of draft must do on a real server: replay as served, learn, and be published by a learner."""

import json
import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from paceline.buffer.board.version import DraftVersion
from paceline.learner.judging.replay import replay_traces
from paceline.learner.model.draft_io import load_draft, load_target_embedding, load_target_head
from paceline.learner.training.trainer import DraftTrainer, TrainingPlan
from paceline.policies.acceptance import Tally, identity, replayed_tally
from paceline.rig.services import learner_service
from waiting import until

REQUESTS, WAVES = 24, 12
log = logging.getLogger(__name__)


def loader(target: Path) -> Any:
    """Loads a folder's draft beside what it shares with `target`."""
    return partial(load_draft, embedding=load_target_embedding(target), target_head=partial(load_target_head, target))


def traces_of(rig: Any, name: str, start: int = 0, **sampling: float) -> tuple[list, list]:
    """Serve and return a trace each of REQUESTS requests, and the answers."""
    texts = [text[start:][:160] for text in rig.texts[:REQUESTS]]
    jobs = [{"rid": f"{name}-{i}", "text": text, "max_tokens": 48, **sampling} for i, text in enumerate(texts)]
    replies = rig.generate_all(jobs)
    status = rig.drained()
    assert status.swap_reason == "" or not status.has_draft
    found = {entry.trace.request_id: entry.trace for entry in rig.buffer.replay(10_000)}
    return [found[job["rid"]] for job in jobs], [reply["output_ids"] for reply in replies]


def assert_replayed_as_served(draft: Any, traces: list, steps: int, least_rounds: int) -> None:
    """Every round of more than `least_rounds` has the length that was served."""
    pairs = [identity(trace, run) for trace, run in zip(traces, replay_traces(draft, traces, steps), strict=True)]
    assert sum(compared for _, compared in pairs) > least_rounds
    assert [equal for equal, _ in pairs] == [compared for _, compared in pairs]


def assert_learned_whatever_the_seed(rig: Any, load: Any, folder: Path, steps: int) -> None:
    """Three seeds learn from 48 requests of the rig: each has more accepted of 24 others than the folder's draft."""
    asked = [traces_of(rig, f"learn-{part}", start=160 * part)[0] for part in range(1, 4)]
    held_out = asked.pop()
    before = accept_length(load(folder), held_out, steps)
    after = []
    for seed in range(3):
        trainer = DraftTrainer(load(folder), TrainingPlan(steps=steps, passes=3, seed=seed))
        trainer.fit([trace for part in asked for trace in part], [])
        after.append(accept_length(trainer.draft, held_out, steps))
    log.info("accept length of %d other requests: %.3f, learned %s", REQUESTS, before, after)
    assert min(after) > before + 0.2


def accept_length(draft: Any, traces: list, steps: int) -> float:
    """Tokens per verify round that `draft` would have."""
    return sum(map(replayed_tally, traces, replay_traces(draft, traces, steps)), Tally()).accept_length


def published_by_a_learner(rig: Any, draft: Path, folder: Path, **more: str) -> DraftVersion:
    """Serve in waves until a learner that starts with `draft` publishes one that passes its gate; return that."""
    env = {
        "PACELINE_REDIS_URL": rig.redis_url,
        "PACELINE_SPECULATOR": "e2e",
        "PACELINE_TARGET": "e2e-target",
        "PACELINE_TARGET_PATH": str(rig.target),
        "PACELINE_DRAFT": str(draft),
        "PACELINE_CACHE_DIR": str(folder / "cache"),
        "PACELINE_DATA_DIR": str(folder),
        "PACELINE_MLFLOW_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "PACELINE_MIN_NEW_TRACES": "16",
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "OMP_NUM_THREADS": "1",
        **more,
    }
    started_with = rig.board.read().live
    with learner_service(log=folder / "learner.log", env=env):
        for wave in range(WAVES):
            traces_of(rig, f"wave-{wave}", start=160 * (5 + wave))
            until(lambda: rig.buffer.counts().pending < REQUESTS, "the learner to keep up", 240.0)
            if rig.board.read().live != started_with:
                break
    state = rig.board.read()
    assert state.live != started_with, f"{WAVES} waves, and no draft passed the gate"
    return state.rows[state.live].version


def doctor(*flags: str, **env: str) -> dict[str, tuple[str, str]]:
    """What `paceline doctor` finds about a server with these flags, by topic."""
    command = [sys.executable, "-m", "paceline.cli", "doctor", "--json", "--", *flags]
    said = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False)
    lines = map(json.loads, said.stdout.splitlines())
    return {line["topic"]: (line["level"], line["sentence"]) for line in lines}
