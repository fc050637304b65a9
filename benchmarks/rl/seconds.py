"""Seconds of one step's rollouts with the target and the drafts as they were at a saved step.

The small target is deepened with layers that change no output, until a draft step costs what it does beside a large
target (measure/deepened.py). Each arm has a server of its own, without capture, and nothing else runs.
"""

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...rig.deployment import LocalDeployment, plain_flags, server_flags
from ...rig.services import sglang_service
from ...serving.rollouts.rollouts import Rollouts
from ..measure.deepened import deepened
from .recorded import RecordedRun

NO_SPECULATION = "no speculation"
ANSWERS, TOKENS = 8, 64
_RUNNING = 16
_WEIGHTS = "model.safetensors"
_KEPT = "seconds.json"

#: Step -> arm -> figures.
Seconds = dict[str, dict[str, dict[str, float]]]


def ensure_seconds(run: RecordedRun, target: Path, layers: int) -> Seconds:
    """Rollout and tail seconds of every arm at every saved step; each is kept as soon as it is measured."""
    kept = run.folder / f"{layers}-layers-{_KEPT}"
    found: Seconds = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for step, weights in run.saved_targets.items():
        with tempfile.TemporaryDirectory(dir=run.folder) as place:
            slow = deepened(_whole(target, weights, Path(place)), layers, Path(place) / "deepened")
            for arm, draft in drafts_at(run, step).items():
                if arm not in found.setdefault(str(step), {}):
                    found[str(step)][arm] = measured(slow, draft, run, Path(place))
                    kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def drafts_at(run: RecordedRun, step: int) -> dict[str, Path | None]:
    """Arm -> its draft at a step; that of the following arm is the one that served most of its rollouts."""
    served = Counter(trace.draft_version for trace in run.traces()[step])
    ((following, _),) = served.most_common(1)
    numbers = {"zero-update": 0, "adapted once": run.adapted_once(step), "following": following}
    return {NO_SPECULATION: None, **{arm: run.draft(number) for arm, number in numbers.items()}}


def measured(target: Path, draft: Path | None, run: RecordedRun, place: Path) -> dict[str, float]:
    """Rollouts of one step on a server of its own: the run's first prompts, several answers each."""
    local = LocalDeployment.on_free_ports(place)
    flags = flags_of(target, draft)
    env = {"PACELINE_CONFIG": os.devnull, "PACELINE_REDIS_URL": "", "OMP_NUM_THREADS": "1"}
    with (
        sglang_service(flags, local.server_port, log=run.folder / "seconds.log", env=env),
        Rollouts(local.server_url) as rollouts,
    ):
        prompts: Sequence[Sequence[int]] = [ids for ids in run.notes["prompts"] for _ in range(ANSWERS)]
        temperature = run.notes["options"]["temperature"]
        rollouts.generate(prompts[:ANSWERS], max_new_tokens=4, temperature=temperature)  # the first requests are slow
        rollouts.generate(prompts, max_new_tokens=TOKENS, temperature=temperature)
        figures: Mapping[str, float] = rollouts.metrics()
    return {name.removeprefix("rollout/"): figure for name, figure in figures.items()}


def flags_of(target: Path, draft: Path | None) -> list[str]:
    """The demo's server, with 16 requests at a time; without a draft, one that decodes plainly."""
    flags = plain_flags(target) if draft is None else server_flags(target, draft)
    return [*flags, "--max-running-requests", str(_RUNNING)]


def _whole(target: Path, weights: Path, place: Path) -> Path:
    """A target's folder with other weights in it."""
    whole = place / "target"
    shutil.copytree(target, whole)
    shutil.copy(weights / _WEIGHTS, whole / _WEIGHTS)
    return whole
