"""Where a local paceline lives, and the flags and settings its server and learner share."""

import os
from dataclasses import dataclass
from pathlib import Path

from .models.target import TargetModel

SPECULATOR, REPLICA, LEARNER = "demo", "demo-0", "demo-learner"
DRAFT_STEPS = 3
CONTEXT_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Place:
    """Where this run keeps what it makes."""

    folder: Path
    redis_port: int
    server_port: int

    @property
    def redis_url(self) -> str:
        """The private Redis."""
        return f"redis://127.0.0.1:{self.redis_port}/0"

    @property
    def server_url(self) -> str:
        """The SGLang server."""
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def mlflow_uri(self) -> str:
        """The MLflow store of this run."""
        return f"sqlite:///{(self.folder / 'mlflow.db').absolute()}"


def server_flags(target: Path, draft: Path) -> list[str]:
    """SGLang's flags of the demo's server: greedy, EAGLE-3, a chain of DRAFT_STEPS drafts, on the CPU."""
    flags = {
        "--model-path": target,
        "--device": "cpu",
        "--max-total-tokens": 16384,
        "--max-running-requests": 8,
        "--context-length": CONTEXT_TOKENS,
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": draft,
        "--speculative-num-steps": DRAFT_STEPS,
        "--speculative-eagle-topk": 1,
        "--speculative-num-draft-tokens": DRAFT_STEPS + 1,
        "--log-level": "warning",
    }
    return [str(word) for flag in flags.items() for word in flag]


def shared_env(place: Place, target: TargetModel) -> dict[str, str]:
    """Settings the server and the learner must agree on; one thread each, for two cores have to do."""
    return {
        "PACELINE_CONFIG": os.devnull,  # not the operator's own file
        "PACELINE_REDIS_URL": place.redis_url,
        "PACELINE_SPECULATOR": SPECULATOR,
        "PACELINE_TARGET": "demo-target",
        "PACELINE_TARGET_VERSION": target.key,
        "PACELINE_REPLICA": REPLICA,
        "OMP_NUM_THREADS": "1",
    }
