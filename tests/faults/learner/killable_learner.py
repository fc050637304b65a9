"""Learners that tests kill: `python killable_learner.py` loads torch and MLflow once and forks one per line of stdin.

A line is JSON: {"env": settings as for `paceline learn`, "line": path of a Unix socket, "errors": path of a log}, or
{"wait": pid}, which is answered with how that learner ended. A learner connects to its socket, reads an order per line
and answers each with one line:

    {"do": "round"}                  one round, as Celery's task does it: a report, or what it raised
    {"do": "arm", "point": POINT, "how": "die" or "pause"}   what happens when the next rounds reach POINT
    {"do": "poison", "trace": id}    training on that trace kills the process
    {"do": "skew", "seconds": n}     the wall clock of this process is n seconds off; the monotonic one is right
    {"do": "fill_disk"}, {"do": "free_disk"}   every write to a file fails, or works again

A pausing learner says {"at": POINT}, takes orders until {"do": "go on"}, and goes on with its round.
"""

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.learner import disk
from paceline.learner.config import from_env, quiet_mlflow
from paceline.learner.delivery import delivery
from paceline.learner.delivery.mlflow_registry import Registry
from paceline.learner.round import learning_round, loop
from paceline.learner.round.learning_round import LearningRound
from paceline.learner.round.loop import open_learner
from paceline.learner.state import checkpoint
from paceline.learner.training.trainer import DraftTrainer
from paceline.learner.worker.tasks import heartbeat_of
from paceline.policies.verdict_words import sentence

Strike = Callable[[], None]
Act = Callable[..., Any]


def before(act: Act, strike: Strike) -> Act:
    def run(*arguments: Any, **named: Any) -> Any:
        strike()
        return act(*arguments, **named)

    return run


def after(act: Act, strike: Strike) -> Act:
    def run(*arguments: Any, **named: Any) -> Any:
        done = act(*arguments, **named)
        strike()
        return done

    return run


def half_written(save: Act, strike: Strike) -> Act:
    """Strike with half of the weights in the folder."""

    def run(draft: Any, folder: Any) -> Any:
        save(draft, folder)
        weights = folder / "model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)
        strike()
        return save(draft, folder)

    return run


def half_saved(save: Act, strike: Strike) -> Act:
    """Strike when the first file of what is saved is forced to disk."""

    def run(*arguments: Any, **named: Any) -> Any:
        force = disk._force

        def first(path: Path) -> None:
            disk._force = force
            strike()
            force(path)

        disk._force = first
        return save(*arguments, **named)

    return run


#: Name -> module or class, attribute, and when it strikes.
POINTS: dict[str, tuple[Any, str, Callable[[Act, Strike], Act]]] = {
    "before_training": (DraftTrainer, "fit", before),
    "before_the_gate": (learning_round, "judge_candidate", before),
    "half_way_through_publishing": (delivery, "save_draft", half_written),
    "between_folder_and_board": (RedisVersionBoard, "register", before),
    "between_candidate_and_verdict": (delivery, "_carry_out", before),
    "after_the_verdict": (delivery, "_carry_out", after),
    "before_the_checkpoint": (checkpoint, "save", before),
    "half_way_through_the_checkpoint": (checkpoint, "save", half_saved),
    "between_checkpoint_and_ack": (checkpoint, "save", after),
    "half_way_through_registering_with_mlflow": (Registry, "_run_of", after),
    "before_the_notes_of_a_rest": (checkpoint, "save_notes", before),
    "half_way_through_the_notes_of_a_rest": (checkpoint, "save_notes", half_saved),
    "between_the_notes_of_a_rest_and_ack": (checkpoint, "save_notes", after),
}
#: In which part of a round a patched function counts; outside it, the same function publishes the initial draft.
STEPS: dict[str, tuple[Any, Act]] = {
    "_run_of": (Registry, Registry.sync),
    "save_notes": (LearningRound, LearningRound._rest),
}


class WallClock:
    """What the processes' time.time becomes: right until it is skewed."""

    def __init__(self) -> None:
        self.wrong_by_s = 0.0
        self._true = time.time

    def __call__(self) -> float:
        return self._true() + self.wrong_by_s


wall_clock = WallClock()


class KillableLearner:
    """The learner's side of the socket."""

    def __init__(self, line: socket.socket) -> None:
        self._messages = line.makefile("rw", encoding="utf-8")
        self._learner: loop.Learner | None = None

    def obey(self) -> None:
        """Follow orders until "go on", or until the test has closed the socket."""
        while text := self._messages.readline():
            order = json.loads(text)
            do = order.pop("do")
            if do == "go on":
                return
            self._say(getattr(self, do)(**order) or {})

    def round(self) -> dict[str, Any]:
        try:
            # As tasks.py does: a learner that could not be opened is opened at the next round.
            config = from_env()
            self._learner = self._learner or open_learner(config, heartbeat_of(config))
            report = self._learner.learn_once()
        except Exception as error:  # noqa: BLE001 - Celery logs any and starts the next round all the same
            return {"error": type(error).__name__, "why": str(error)}
        return {"kind": report.kind, "why": sentence(report.why), "version": report.version, **report.outcomes}

    def arm(self, point: str, how: str) -> None:
        place, name, moment = POINTS[point]
        strike = self._die if how == "die" else partial(self._pause, point)
        owner, begin = STEPS.get(name, (LearningRound, LearningRound._learn))
        struck = False

        def once() -> None:
            nonlocal struck
            if not struck:
                struck = True
                strike()

        def armed(this: Any, *arguments: Any) -> Any:
            setattr(owner, begin.__name__, begin)
            setattr(place, name, moment(getattr(place, name), once))
            return begin(this, *arguments)

        setattr(owner, begin.__name__, armed)

    def poison(self, trace: str) -> None:
        fit = DraftTrainer.fit

        def poisoned(this: Any, fresh: Any, replayed: Any, part_tokens: Any) -> Any:
            if trace in {one.trace_id for one in (*fresh, *replayed)}:
                self._die()
            return fit(this, fresh, replayed, part_tokens)

        DraftTrainer.fit = poisoned

    def skew(self, seconds: float) -> None:
        wall_clock.wrong_by_s = seconds

    def fill_disk(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _pause(self, point: str) -> None:
        self._say({"at": point})
        self.obey()

    def _say(self, answer: dict[str, Any]) -> None:
        self._messages.write(json.dumps(answer) + "\n")
        self._messages.flush()


def live(job: dict[str, Any]) -> None:
    errors = os.open(job["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.environ.update(job["env"])
    time.time = wall_clock
    RedisVersionBoard.__init__.__defaults__ = (wall_clock,)  # bound when the class was made
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(job["line"])
        KillableLearner(line).obey()


def main() -> None:
    # Seconds of imports, paid once for all learners: MLflow's, and those an optimiser pulls in when it is made.
    quiet_mlflow()
    import mlflow  # noqa: F401

    torch.set_num_threads(1)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    for text in sys.stdin:
        job = json.loads(text)
        if "wait" in job:
            _, status = os.waitpid(job["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201
        elif pid := os.fork():
            print(pid, flush=True)  # noqa: T201
        else:
            live(job)
            os._exit(0)


if __name__ == "__main__":
    main()
