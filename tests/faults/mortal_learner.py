"""A learner that kills itself with SIGKILL at one point of a round: python mortal_learner.py POINT.

Settings come from the environment as for `paceline learn`. Prints a line of JSON per round it survived, and ends when
nothing is pending. POINT `none` survives.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from paceline.buffer.redis_board import RedisVersionBoard
from paceline.learner import checkpoint, delivery, disk, loop
from paceline.learner.assemble import open_learner
from paceline.learner.config import from_env
from paceline.learner.trainer import DraftTrainer

MAX_ROUNDS = 6


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def behind(act: Callable[..., Any]) -> Callable[..., None]:
    """Do it, then die."""

    def run(*arguments: Any, **named: Any) -> None:
        act(*arguments, **named)
        die()

    return run


def half_written(save: Callable[..., Any]) -> Callable[..., None]:
    """Die with half of the weights in the folder."""

    def run(draft: Any, folder: Any) -> None:
        save(draft, folder)
        weights = folder / "model.safetensors"
        os.truncate(weights, weights.stat().st_size // 2)
        die()

    return run


def half_saved(save: Callable[..., Any]) -> Callable[..., None]:
    """Die when the first file of what is saved is forced to disk."""

    def run(*arguments: Any, **named: Any) -> None:
        disk._force = die
        save(*arguments, **named)

    return run


#: Name -> module or class, attribute, and what takes its place.
POINTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "before_training": (DraftTrainer, "fit", lambda _: die),
    "before_the_gate": (loop, "judge_candidate", lambda _: die),
    "half_way_through_publishing": (delivery, "save_draft", half_written),
    "between_folder_and_board": (RedisVersionBoard, "register", lambda _: die),
    "between_candidate_and_verdict": (delivery, "_carry_out", lambda _: die),
    "behind_the_verdict": (delivery, "_carry_out", behind),
    "before_the_checkpoint": (checkpoint, "save", lambda _: die),
    "half_way_through_the_checkpoint": (checkpoint, "save", half_saved),
    "between_checkpoint_and_ack": (checkpoint, "save", behind),
}


def main() -> None:
    config, point = from_env(), sys.argv[1]
    learner = open_learner(config)
    if point != "none":
        place, name, change = POINTS[point]
        # The initial draft is published and saved by the same functions: only a round's own publication is meant.
        learn = loop.Learner._learn

        def armed(self: Any, *arguments: Any) -> Any:
            setattr(place, name, change(getattr(place, name)))
            return learn(self, *arguments)

        loop.Learner._learn = armed  # type: ignore[method-assign]
    for _ in range(MAX_ROUNDS):
        report = learner.learn_once()
        print(json.dumps({"kind": report.kind, "why": report.why, **report.outcomes}), flush=True)  # noqa: T201
        if not learner._buffer.counts().pending:
            return


if __name__ == "__main__":
    main()
