"""A paceline on this machine: its folder and ports, and the flags and settings its server and learner share."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..learner.config import tracking_uri
from ..learner.model.draft_io import target_config
from .models.target import TargetModel
from .readiness import free_port

SPECULATOR = "demo"
REPLICA = "demo-0"
LEARNER = "demo-learner"
DRAFT_STEPS = 3
#: Of a prompt and its answer together, at most.
CONTEXT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class LocalDeployment:
    """The folder and ports of one local run."""

    folder: Path
    redis_port: int
    server_port: int

    @classmethod
    def on_free_ports(cls, folder: Path) -> Self:
        """A deployment in `folder` on two ports that this process reserves; nothing is started or written."""
        return cls(folder, free_port(), free_port())

    @property
    def redis_url(self) -> str:
        """URL of the private Redis."""
        return f"redis://127.0.0.1:{self.redis_port}/0"

    @property
    def server_url(self) -> str:
        """URL of the SGLang server."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def mlflow_uri(self) -> str:
        """MLflow's tracking URI: a SQLite file in the folder."""
        return tracking_uri("", self.folder)

    def shared_env(self, target: TargetModel) -> dict[str, str]:
        """Settings that the server and the learner must agree on; one thread each, because two cores must suffice."""
        return {
            "PACELINE_CONFIG": os.devnull,  # not the operator's own file
            "PACELINE_REDIS_URL": self.redis_url,
            "PACELINE_SPECULATOR": SPECULATOR,
            "PACELINE_TARGET": "demo-target",
            "PACELINE_TARGET_VERSION": target.key,
            "PACELINE_REPLICA": REPLICA,
            "OMP_NUM_THREADS": "1",
        }


def context_tokens(target: Path) -> int:
    """Tokens of a prompt and its answer together that a server of this target takes."""
    return min(CONTEXT_TOKENS, int(target_config(target).get("max_position_embeddings", CONTEXT_TOKENS)))


def plain_flags(target: Path) -> list[str]:
    """SGLang's flags for a server on the CPU that loads no draft."""
    flags = {
        "--model-path": target,
        "--device": "cpu",
        "--max-total-tokens": 16384,
        "--max-running-requests": 8,
        "--context-length": context_tokens(target),
        "--log-level": "warning",
    }
    return _words(flags)


def server_flags(target: Path, draft: Path) -> list[str]:
    """The same with speculation: EAGLE-3, a chain of DRAFT_STEPS drafts."""
    flags = {
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": draft,
        "--speculative-num-steps": DRAFT_STEPS,
        "--speculative-eagle-topk": 1,
        "--speculative-num-draft-tokens": DRAFT_STEPS + 1,
    }
    return plain_flags(target) + _words(flags)


def paced_flags(folder: Path, steps: Sequence[int]) -> list[str]:
    """Flags beside `server_flags` with which paceline chooses among these numbers of draft steps, 0 for plain steps.

    Writes SGLang's list of them to `folder`, which is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lengths = folder / "lengths.json"
    lengths.write_text(json.dumps({"1": {"candidate_steps": list(steps)}}), encoding="utf-8")
    return ["--speculative-adaptive", "--speculative-adaptive-config", str(lengths)]


def _words(flags: Mapping[str, object]) -> list[str]:
    return [str(word) for flag in flags.items() for word in flag]
