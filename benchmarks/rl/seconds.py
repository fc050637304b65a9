"""Seconds of one step's rollouts with the target and the drafts as they were at a saved step.

Most answers are short and a few are long, as rollouts are: a wide part in which the server's batch is full, and a tail
in which one to three requests run. The small target is deepened with layers that change no output, until a draft step
costs what it does beside a large target (rig/models/deepened.py). Every arm has a server of its own, without capture;
all are up at the same time and are asked one after the other, in an order drawn anew each time, so that every figure
has a partner measured beside it.
"""

import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...rig.deployment import LocalDeployment
from ...rig.models.deepened import deepened
from ...rig.models.target import TargetModel
from ...rig.services import redis_service
from ...rig.speed.arm import Arm, running_arms
from ...serving.rollouts.completion import Completion
from ...serving.rollouts.rollouts import Rollouts
from ...serving.rollouts.step_figures import rollout_figures
from .recorded import RecordedRun

NO_SPECULATION = "no-speculation"
PACED = "following-paced"
ANSWERS = 4
REPEATS = 3
#: Output tokens of most answers, and of the last answer to each of the first LONG_ANSWERS prompts.
SHORT = 32
LONG = 240
LONG_ANSWERS = 3
MORE_FLAGS = ("--max-running-requests", "16")
_WEIGHTS = "model.safetensors"
_KEPT = "seconds.json"

#: Figures of one arm's rollouts, each time it was asked: `seconds`, `tail_seconds`, `tokens`, and where it drafts
#: `accept_length`.
Figures = list[dict[str, float]]
#: Step -> arm -> figures; of all arms the same number, and those at one place were measured in turn.
Seconds = dict[str, dict[str, Figures]]


def ensure_seconds(run: RecordedRun, target: Path, layers: int) -> Seconds:
    """Rollout and tail seconds of every arm at every saved step; a step is kept as soon as it is measured."""
    kept = run.folder / f"{layers}-layers-{_KEPT}"
    found: Seconds = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for step, weights in run.saved_targets.items():
        if str(step) in found:
            continue
        with tempfile.TemporaryDirectory(dir=run.folder) as place:
            slow = deepened(_whole(target, weights, Path(place)), layers, Path(place) / "deepened")
            found[str(step)] = measured(TargetModel(slow, "deepened", {}, 0), run, step, Path(place))
        kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def arms_at(run: RecordedRun, step: int) -> list[Arm]:
    """All arms with their drafts at a step; that of the following arm is the one that served most of its rollouts."""
    served = Counter(trace.draft_version for trace in run.traces()[step])
    ((following, _),) = served.most_common(1)
    return [
        Arm(NO_SPECULATION, None),
        Arm("zero-update", run.draft(0)),
        Arm("adapted-once", run.draft(run.adapted_once(step))),
        Arm("following", run.draft(following)),
        Arm(PACED, run.draft(following), is_paced=True),
    ]


def measured(target: TargetModel, run: RecordedRun, step: int, place: Path) -> dict[str, Figures]:
    """REPEATS times the rollouts of one step on every arm's server."""
    local = LocalDeployment.on_free_ports(place)
    with (
        redis_service(place / "redis", local.redis_port),
        running_arms(arms_at(run, step), target, local, MORE_FLAGS) as servers,
    ):
        return in_turns({name: asking(server.url, run) for name, server in servers.items()}, random.Random(step))


def in_turns(ask: Mapping[str, Callable[[int], dict[str, float]]], draw: random.Random) -> dict[str, Figures]:
    """What each arm gives for a number of answers per prompt: for one, which is thrown away, then REPEATS times."""
    for each in ask.values():
        each(1)  # the first requests load what later ones find, and pacing measures its costs
    found: dict[str, Figures] = {name: [] for name in ask}
    for _ in range(REPEATS):
        for name in draw.sample(list(ask), len(ask)):
            found[name].append(ask[name](ANSWERS))
    return found


def asking(url: str, run: RecordedRun) -> Callable[[int], dict[str, float]]:
    """Asks a server so many answers to each of the run's first prompts, at the run's temperature."""
    temperature = run.notes["options"]["temperature"]

    def generate(length: int, prompts: Sequence[Sequence[int]]) -> list[Completion]:
        with Rollouts(url) as rollouts:
            return rollouts.generate(prompts, max_new_tokens=length, temperature=temperature)

    def ask(answers: int) -> dict[str, float]:
        by_length = prompts_by_length(run.notes["prompts"], answers)
        began_s = time.perf_counter()
        with ThreadPoolExecutor(len(by_length)) as pool:
            done = [each for part in pool.map(generate, by_length, by_length.values()) for each in part]
        figures = rollout_figures(done, time.perf_counter() - began_s)
        named = {name.removeprefix("rollout/"): figure for name, figure in figures.items()}
        return named | {"tokens": sum(len(each.token_ids) for each in done)}

    return ask


def prompts_by_length(prompts: Sequence[Sequence[int]], answers: int) -> dict[int, list[Sequence[int]]]:
    """Output tokens -> the prompts to answer with so many, each as often as it has answers of that length."""
    found: dict[int, list[Sequence[int]]] = {LONG: [], SHORT: []}
    for at, ids in enumerate(prompts):
        for number in range(answers):
            is_long = at < LONG_ANSWERS and number == answers - 1
            found[LONG if is_long else SHORT].append(ids)
    return {length: asked for length, asked in found.items() if asked}


def _whole(target: Path, weights: Path, place: Path) -> Path:
    """A target's folder with other weights in it."""
    whole = place / "target"
    shutil.copytree(target, whole)
    shutil.copy(weights / _WEIGHTS, whole / _WEIGHTS)
    return whole
