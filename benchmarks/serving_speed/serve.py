"""Makes a run, or the rest of one: starts everything, asks block by block, and keeps each as soon as it is answered."""

import random
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...rig.deployment import LocalDeployment
from ...rig.models.target import TargetModel
from ...rig.progress import Report
from ...rig.speed.arm import Arm, ArmServer, running_arms
from ...rig.speed.turn import take_turn, take_turns
from ..measure.answers import answer_all, asks
from ..measure.measured_server import wait_until
from .arms import PACELINE
from .loop import Loop, redis_for, running_loop
from .recorded import Block, Conditions, Run, load_run, open_run, save_block, save_hold
from .stream import Chunk

#: Traffic waits while the learner learns: as with a learner on a machine of its own, which would be as fast.
ELSEWHERE = "elsewhere"
#: The learner runs while its own server is asked, on the same cores.
SAME_CORES = "same-cores"
#: Tokens of the requests that every server answers before anything is measured: the first ones take seconds.
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a run serves, and where it is kept."""

    target: TargetModel
    arms: Sequence[Arm]
    chunks: Sequence[Chunk]
    conditions: Conditions
    folder: Path

    @property
    def state(self) -> Path:
        """What is kept of an unfinished run beside its answers: Redis' data, versions, checkpoints, logs."""
        return self.folder / "state"


def ensure_run(job: Job, report: Report) -> Run:
    """The whole run: what its folder holds of it, and the rest, which is served now.

    An interrupted run goes on with the block that was not answered by all arms: Redis has its traces and versions,
    the learner its checkpoint, and the server swaps to the version that was live. Raises as take_turn and Service do.
    """
    found = open_run(job.folder, job.conditions)
    answered = {(block.chunk, block.concurrency) for block in found.blocks}
    held = {hold.chunk for hold in found.holds}
    left = [chunk for chunk in job.chunks if chunk.number not in held]
    if left:
        _refuse_other_code(found, job)
        _serve(job, left, answered, report)
    shutil.rmtree(job.state, ignore_errors=True)
    return load_run(job.folder)


def _refuse_other_code(found: Run, job: Job) -> None:
    began = found.conditions.commit
    now = job.conditions.commit
    if began != now:
        raise SystemExit(
            f"{job.folder}: got code {now}, expected {began} to go on with its run; remove it to begin anew"
        )


def _serve(job: Job, left: Sequence[Chunk], answered: set[tuple[int, int]], report: Report) -> None:
    job.state.mkdir(parents=True, exist_ok=True)
    local = LocalDeployment.on_free_ports(job.state)
    paceline = next(arm for arm in job.arms if arm.name == PACELINE)
    with ExitStack() as stack:
        report(0.0, "starting the servers")
        stack.enter_context(redis_for(local))
        servers = stack.enter_context(running_arms(job.arms, job.target, local))
        size = left[0].requests
        loop = stack.enter_context(
            running_loop(job.arms, paceline, target=job.target, local=local, chunk_requests=size)
        )
        _warm_up(servers, left[0], loop)
        for chunk in left:
            for concurrency in chunk.blocks:
                if (chunk.number, concurrency) not in answered:
                    report(chunk.number / len(job.chunks), f"{chunk.domain}, concurrency {concurrency}")
                    save_block(job.folder, _asked(job, servers, loop, chunk=chunk, concurrency=concurrency))
            report(chunk.number / len(job.chunks), "the learner's turn")
            is_held = job.conditions.mode == ELSEWHERE
            save_hold(job.folder, loop.catch_up(chunk.number) if is_held else loop.noted(chunk.number))
    report(1.0, "served")


def _asked(job: Job, servers: dict[str, ArmServer], loop: Loop, *, chunk: Chunk, concurrency: int) -> Block:
    """One block answered by every arm, in a random order."""
    ask = partial(
        take_turn,
        prompts=chunk.blocks[concurrency],
        concurrency=concurrency,
        max_tokens=job.conditions.max_tokens,
        label=f"turn-{time.time_ns()}",
    )
    draw = random.Random(f"{job.conditions.seed} {chunk.number} {concurrency}")
    live = loop.live
    is_beside = job.conditions.mode == SAME_CORES
    turns = take_turns(servers, ask, draw, loop.beside) if is_beside else take_turns(servers, ask, draw)
    return Block(chunk=chunk.number, domain=chunk.domain, concurrency=concurrency, turns=tuple(turns), live=live)


def _warm_up(servers: dict[str, ArmServer], chunk: Chunk, loop: Loop) -> None:
    """A few tokens from every server at every concurrency, of which nothing is captured; then all must be as meant."""
    for server in servers.values():
        for concurrency, block in chunk.blocks.items():
            backwards = [replace(prompt, input_ids=prompt.input_ids[::-1]) for prompt in block[:concurrency]]
            answer_all(server.url, asks(backwards, "warm-up", WARM_UP_TOKENS, capture=False), concurrency)
    wait_until(loop.is_swapped, "the live draft to be swapped in")
    wait_until(loop.is_paced, "every arm that is to be paced to be paced")
