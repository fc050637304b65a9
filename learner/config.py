"""Settings of one learner process; the only file of the room that reads the environment."""

import hashlib
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..buffer.config import BufferConfig
from ..buffer.environment import read_float, read_int
from ..buffer.errors import ConfigError
from ..policies.learn_schedule import LearnMode, LearnRules
from ..policies.trace_weighting import known_targets

#: Names that become folders, queues and registered models: no separators, no spaces.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def name_on(host: str) -> str:
    """The name of a learner on `host`: the same at every start, so that it takes up what it left pending.

    At most 64 letters, digits, '.', '_' and '-'. A host name that would have to be changed or cut is told apart by a
    digest of the whole. Two learners on one host share it and must be named by PACELINE_LEARNER.
    """
    name = f"learner-{host}"
    if _NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(host.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9._-]', '-', name)[:55]}-{digest}"


#: Names in policies.objective.Objective, which needs torch to be read.
OBJECTIVES = (
    "committed",
    "soft",
    "target_only",
    "rejection",
    "matched",
    "expected_length",
    "log_expected_length",
    "reinforce",
    "forward_kl_accepted",
    "forward_kl_wrong",
    "reverse_kl",
    "jensen_shannon",
    "on_policy_mix",
    "tvd_plus_plus",
    "lk_mix",
    "selective",
    "group_tree",
)


@dataclass(frozen=True, slots=True)
class LearnerConfig:
    """Every knob of a learner with its default. ConfigError, naming the field and its value, when one is wrong."""

    target: str  # name of the target as traces carry it
    target_path: Path  # folder of the target; its embedding is shared with the draft
    initial_draft: Path  # folder of the draft the server was started with
    redis_url: str = field(default="redis://127.0.0.1:6379/0", repr=False)  # may hold a password
    buffer: BufferConfig = field(default_factory=BufferConfig)  # speculator, and the bounds of its stream
    target_version: str = "0"  # traces judged by other weights are refused
    data_dir: Path = Path(".paceline")  # versions, checkpoints, unsent registrations
    mlflow_uri: str = ""  # empty: sqlite in data_dir
    name: str = field(default_factory=lambda: name_on(socket.gethostname()))  # consumer and member; one per process
    learn: str = LearnMode.DRIFT  # when a round trains; one that does not keeps its traces for replay
    rest_after_rounds: int = 6  # in a row without a better draft
    cool_down_s: float = 60.0  # the shortest rest
    trace_ttl_s: float = 0.0  # since a trace was born; 0: as long as the buffer keeps it
    target_max_age: int = 0  # target versions behind the newest that are still trained on, each counting half
    target_versions: tuple[str, ...] = ()  # the target's history, oldest first; empty: whole numbers count down
    min_new_traces: int = 40  # fewer pending traces leave a round idle, unless they fill half of the buffer
    max_claim: int = 400  # traces one round takes at most
    window_traces: int = 200  # learned traces kept for replay
    passes: int = 4  # over every new trace
    holdout_share: float = 0.1  # of requests, by hash; never trained on
    min_holdout_requests: int = 8  # fewer leave the gate waiting
    holdout_window: int = 48  # most recent held-out requests a verdict rests on
    gate_confidence: float = 0.95
    draft_steps: int | None = None  # None: the widest chain the claimed traces drafted
    objective: str = "soft"
    seed: int = 0
    device: str = "auto"  # as torch names it; auto: cuda where there is one
    round_interval_s: float = 30.0
    round_lease_s: float = 60.0  # a killed learner frees its speculator, and is called dead, after this
    longest_round_s: float = 3600.0  # a round is not started a second time before this
    canary_limit_s: float = 1800.0  # an undecided canary ends after this; 0: none, versions go live at once
    kept_versions: int = 8  # newest versions whose weights stay on disk, beside the live and the previous one

    def __post_init__(self) -> None:
        for name in ("speculator", "name"):
            self._check(name, _NAME.fullmatch(getattr(self, name)) is not None, "letters, digits, '.', '_' or '-'")
        for name in ("target", "target_version", "redis_url"):
            self._check(name, bool(getattr(self, name)), "a name")
        for name in ("min_new_traces", "max_claim", "window_traces", "passes", "holdout_window", "kept_versions"):
            self._check(name, getattr(self, name) >= 1, "at least 1")
        self._check("rest_after_rounds", self.rest_after_rounds >= 1, "at least 1")
        self._check("draft_steps", self.draft_steps is None or self.draft_steps >= 1, "at least 1")
        for name in ("holdout_share", "gate_confidence"):
            self._check(name, 0 < getattr(self, name) < 1, "between 0 and 1")
        for name in ("round_interval_s", "round_lease_s", "longest_round_s"):
            self._check(name, getattr(self, name) > 0, "more than 0 seconds")
        for name in ("canary_limit_s", "cool_down_s", "trace_ttl_s"):
            self._check(name, getattr(self, name) >= 0, "0 seconds or more")
        self._check("learn", self.learn in set(LearnMode), f"one of {[str(mode) for mode in LearnMode]}")
        self._check("target_max_age", self.target_max_age >= 0, "0 versions or more")
        self._check("objective", self.objective in OBJECTIVES, f"one of {OBJECTIVES}")
        self._check_pairs()

    def _check_pairs(self) -> None:
        claim = f"at least min_new_traces ({self.min_new_traces})"
        self._check("max_claim", self.max_claim >= self.min_new_traces, claim)
        holdout = f"2 to holdout_window ({self.holdout_window})"
        try:
            known_targets(self.target_version, self.target_versions, self.target_max_age)
        except ValueError as error:
            raise ConfigError(
                f"PACELINE_TARGET_VERSIONS (PACELINE_TARGET_MAX_AGE {self.target_max_age}): {error}"
            ) from None
        self._check("min_holdout_requests", 2 <= self.min_holdout_requests <= self.holdout_window, holdout)

    def _check(self, name: str, is_right: bool, expected: str) -> None:
        if not is_right:
            key = next((key for key, (known, _) in _KEYS.items() if known == name), "PACELINE_SPECULATOR")
            raise ConfigError(f"{name} ({key}): got {getattr(self, name)!r}, expected {expected}")

    @property
    def speculator(self) -> str:
        """The draft this process learns: one stream, one board, one queue."""
        return self.buffer.speculator

    @property
    def learn_rules(self) -> LearnRules:
        """When this learner trains and when it rests."""
        return LearnRules(LearnMode(self.learn), self.rest_after_rounds, self.cool_down_s)

    @property
    def trained_target_versions(self) -> tuple[str, ...]:
        """Target versions whose traces are trained on, oldest first."""
        return known_targets(self.target_version, self.target_versions, self.target_max_age)

    @property
    def tracking_uri(self) -> str:
        """Where MLflow keeps runs: the setting, else a SQLite file in the data folder."""
        return self.mlflow_uri or f"sqlite:///{(self.data_dir / 'mlflow.db').absolute()}"

    @property
    def versions_dir(self) -> Path:
        """Published weights, one folder per version; servers read them here."""
        return self.data_dir / "versions" / self.speculator

    @property
    def checkpoints_dir(self) -> Path:
        """What a restarted learner goes on from; nobody else reads it."""
        return self.data_dir / "checkpoints" / self.speculator

    @property
    def queue(self) -> str:
        """Celery queue of the rounds of this speculator."""
        return f"paceline.learn.{self.speculator}"


def from_env(environ: Mapping[str, str] | None = None) -> LearnerConfig:
    """Read PACELINE_* once. ConfigError names the variable that is missing or cannot be read."""
    given = os.environ if environ is None else environ
    missing = [key for key in _REQUIRED if not given.get(key)]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: got nothing, expected a value; set it before starting a learner")
    read = {name: _read(given, key, kind) for key, (name, kind) in _KEYS.items() if given.get(key)}
    return LearnerConfig(buffer=BufferConfig.from_env(given), **read)


def _read(given: Mapping[str, str], key: str, kind: Callable[[str], Any]) -> Any:
    if kind is int:
        return read_int(given, key, 0)
    return read_float(given, key, 0.0) if kind is float else kind(given[key])


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_REQUIRED = ("PACELINE_TARGET", "PACELINE_TARGET_PATH", "PACELINE_DRAFT")

#: Variable -> field and how its text is read.
_KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "PACELINE_TARGET": ("target", str),
    "PACELINE_TARGET_PATH": ("target_path", Path),
    "PACELINE_DRAFT": ("initial_draft", Path),
    "PACELINE_REDIS_URL": ("redis_url", str),
    "PACELINE_TARGET_VERSION": ("target_version", str),
    "PACELINE_DATA_DIR": ("data_dir", Path),
    "PACELINE_MLFLOW_URI": ("mlflow_uri", str),
    "PACELINE_LEARNER": ("name", str),
    "PACELINE_TARGET_VERSIONS": ("target_versions", _read_names),
    "PACELINE_TARGET_MAX_AGE": ("target_max_age", int),
    "PACELINE_TRACE_TTL_S": ("trace_ttl_s", float),
    "PACELINE_LEARN": ("learn", str),
    "PACELINE_REST_AFTER_ROUNDS": ("rest_after_rounds", int),
    "PACELINE_COOL_DOWN_S": ("cool_down_s", float),
    "PACELINE_MIN_NEW_TRACES": ("min_new_traces", int),
    "PACELINE_MAX_CLAIM": ("max_claim", int),
    "PACELINE_WINDOW_TRACES": ("window_traces", int),
    "PACELINE_PASSES": ("passes", int),
    "PACELINE_HOLDOUT_SHARE": ("holdout_share", float),
    "PACELINE_MIN_HOLDOUT_REQUESTS": ("min_holdout_requests", int),
    "PACELINE_HOLDOUT_WINDOW": ("holdout_window", int),
    "PACELINE_GATE_CONFIDENCE": ("gate_confidence", float),
    "PACELINE_DRAFT_STEPS": ("draft_steps", int),
    "PACELINE_OBJECTIVE": ("objective", str),
    "PACELINE_SEED": ("seed", int),
    "PACELINE_DEVICE": ("device", str),
    "PACELINE_ROUND_INTERVAL_S": ("round_interval_s", float),
    "PACELINE_ROUND_LEASE_S": ("round_lease_s", float),
    "PACELINE_LONGEST_ROUND_S": ("longest_round_s", float),
    "PACELINE_CANARY_LIMIT_S": ("canary_limit_s", float),
    "PACELINE_KEPT_VERSIONS": ("kept_versions", int),
}


def quiet_mlflow() -> None:
    """Set what MLflow reads while it is imported: no telemetry, no progress bars, short patience with a dead server.

    Values the operator set stay. Call before the first import of mlflow.
    """
    for key, value in _MLFLOW_ENV.items():
        os.environ.setdefault(key, value)


_MLFLOW_ENV: Mapping[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A round must not hang for minutes on a tracking server that is down; the registration is retried next round.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
