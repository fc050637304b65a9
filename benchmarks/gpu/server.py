"""The server under test: `paceline serve` on a GPU or on the CPU host, and the settings it reports."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from ...rig.deployment import DRAFT_STEPS, LocalDeployment
from ...rig.models.target import TargetModel
from ...rig.progress import Report
from ...rig.services import Service, sglang_service
from ..measure.measured_server import MeasuredServer, wait_until
from .models import CONTEXT_TOKENS

#: A first start on a GPU also compiles SGLang's own kernels.
START_LIMIT_S = 480.0
#: The scheduler reports its status to the courier every second, and the courier reports it to the board.
HEARTBEAT_S = 2.0
#: The resolved settings of SGLang that the report includes: they show whether overlap and graphs were really on.
REPORTED = (
    "device",
    "dtype",
    "attention_backend",
    "sampling_backend",
    "disable_overlap_schedule",
    "cuda_graph_config",
    "cuda_graph_backend_decode",
    "cuda_graph_max_bs_decode",
    "max_running_requests",
    "speculative_num_steps",
    "version",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How the server is started."""

    device: str  # "cuda" or "cpu"
    dtype: str
    max_running: int
    attention_backend: str
    sampling_backend: str
    extra: tuple[str, ...] = ()  # SGLang's own flags, the last one wins
    speculates: bool = True

    def flags(self, target: Path, draft: Path) -> list[str]:
        """SGLang's flags; on a GPU neither overlap scheduling nor CUDA graphs are turned off."""
        drafting = {
            "--speculative-algorithm": "EAGLE3",
            "--speculative-draft-model-path": draft,
            "--speculative-num-steps": DRAFT_STEPS,
            "--speculative-eagle-topk": 1,
            "--speculative-num-draft-tokens": DRAFT_STEPS + 1,
        }
        flags = {
            "--model-path": target,
            "--device": self.device,
            "--dtype": self.dtype,
            "--context-length": CONTEXT_TOKENS,
            "--max-running-requests": self.max_running,
            **(drafting if self.speculates else {}),
            **(self._gpu_flags() if self.device == "cuda" else {"--max-total-tokens": 16384, "--log-level": "warning"}),
        }
        return [*(str(word) for flag in flags.items() for word in flag), *self.extra]

    def _gpu_flags(self) -> dict[str, object]:
        return {
            "--attention-backend": self.attention_backend,
            "--sampling-backend": self.sampling_backend,
            # The checks run transformers, the learner and a server without paceline on the same GPU.
            "--mem-fraction-static": 0.3,
            "--cuda-graph-max-bs-decode": self.max_running,
            "--log-level": "info",
        }


def server_service(
    serving: Serving,
    local: LocalDeployment,
    *,
    target: TargetModel,
    draft: Path,
    log: Path,
    report: Report,
    env: Mapping[str, str] | None = None,
) -> Service:
    """The server with the plugin; ready when it has generated a token. `env` overrides the usual settings."""
    return sglang_service(
        serving.flags(target.folder, draft),
        local.server_port,
        log=log,
        env=local.shared_env(target) | dict(env or {}),
        report=report,
        start_limit_s=START_LIMIT_S,
    )


def require_capture(server: MeasuredServer) -> None:
    """Exit with the server's reason unless capture and swaps are on."""
    ready_at = time.time() + HEARTBEAT_S  # an earlier heartbeat may describe the server before it was ready
    wait_until(lambda: (server.reader.replica_status().at or 0.0) > ready_at, "the replica's heartbeat")
    status = server.reader.replica_status()
    if status.capture != "on" or status.swap != "on":
        raise SystemExit(f"capture is {status.capture} ({status.capture_reason}), swaps: {status.swap_reason}")


def resolved_settings(url: str, keys: Sequence[str] = REPORTED) -> Mapping[str, object]:
    """Settings the server reports; keys that this SGLang does not know are left out."""
    settings = httpx.get(f"{url}/server_info", timeout=60.0, trust_env=False).raise_for_status().json()
    return {key: settings[key] for key in keys if key in settings}
