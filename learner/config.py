"""Settings of one learner process."""

import hashlib
import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..buffer.config import BufferConfig
from ..buffer.errors import ConfigError
from ..buffer.settings.fields import check_fields, configured, required_setting, setting
from ..buffer.settings.kinds import NAME_PATTERN
from ..buffer.settings.sources import read_settings
from ..buffer.settings.table import FIRST_VERSION, FOLLOW, LOCAL_REDIS
from ..policies.learn_schedule import LearnMode, LearnRules
from ..policies.line_delivery import DeliveryRules
from ..policies.prequential import PrequentialRules
from ..policies.target_history import TargetHistory
from ..policies.trace_weighting import known_targets

#: Target versions before the newest that are trained on where the learner follows: they count half and a quarter.
_FOLLOWED_AGE = 2

#: Traces of a claim, unless a learning round needs more: few enough for memory, and enough to catch up with a backlog.
_USUAL_CLAIM = 400


def name_on(host: str) -> str:
    """Name of the learner on `host`: the same at every start, so that it resumes the traces it left pending.

    At most 64 letters, digits, '.', '_' and '-'; a host name that has to be changed or cut for that gets a digest of
    the whole name. Of two learners on one host the later one beats as another member (MemberName), and says so.
    """
    name = f"learner-{host}"
    if re.fullmatch(NAME_PATTERN, name):
        return name
    digest = hashlib.sha256(host.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9._-]', '-', name)[:55]}-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """Every setting of a learner. ConfigError, naming the setting and its value, when one is wrong."""

    target_path: Path = required_setting("TARGET_PATH")
    initial_draft: Path = required_setting("DRAFT")
    target: str = setting("TARGET")
    redis_url: str = setting("REDIS_URL", default=LOCAL_REDIS)
    redis_ca: str | None = setting("REDIS_CA")
    buffer: BufferConfig = field(default_factory=BufferConfig)  # speculator, and the bounds of its stream
    target_version: str = setting("TARGET_VERSION", default=FOLLOW)
    data_dir: Path = setting("DATA_DIR")
    cache_dir: Path = setting("CACHE_DIR")
    mlflow_uri: str = setting("MLFLOW_URI")
    mlflow_pages: str = setting("MLFLOW_PAGES")
    name: str = setting("LEARNER", default_factory=lambda: name_on(socket.gethostname()))
    learn: str = setting("LEARN")
    rest_after_rounds: int = setting("REST_AFTER_ROUNDS")
    rest_after_requests: int = setting("REST_AFTER_REQUESTS")
    cool_down_s: float = setting("COOL_DOWN_S")
    trace_ttl_s: float = setting("TRACE_TTL_S")
    target_max_age: int | None = setting("TARGET_MAX_AGE")  # None: 2 where the learner follows, else 0
    target_versions: tuple[str, ...] = setting("TARGET_VERSIONS")
    min_new_traces: int = setting("MIN_NEW_TRACES")
    max_wait_s: float = setting("MAX_WAIT_S")
    replay_traces: int = setting("REPLAY_TRACES")
    passes: int = setting("PASSES")
    training_share: float = setting("TRAINING_SHARE")
    context_weight: float = setting("CONTEXT_WEIGHT")
    holdout_share: float = setting("HOLDOUT_SHARE")
    gate_confidence: float = setting("GATE_CONFIDENCE")
    draft_steps: int | None = setting("DRAFT_STEPS")
    batch_tokens: int = setting("BATCH_TOKENS")
    objective: str = setting("OBJECTIVE")
    device: str = setting("DEVICE")
    recompute_tokens: int = setting("RECOMPUTE_TOKENS")
    target_path_version: str | None = setting("TARGET_PATH_VERSION")
    round_interval_s: float = setting("ROUND_INTERVAL_S")
    round_lease_s: float = setting("ROUND_LEASE_S")
    canary_limit_s: float = setting("CANARY_LIMIT_S")
    kept_versions: int = setting("KEPT_VERSIONS")
    kept_checkpoints: int = setting("KEPT_CHECKPOINTS")
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        try:
            self.target_history()
        except ValueError as error:
            raise ConfigError(
                f"PACELINE_TARGET_VERSIONS (PACELINE_TARGET_MAX_AGE {self.target_max_age or 0}): {error}"
            ) from None

    @property
    def max_claim(self) -> int:
        """Traces that one learning round takes at most."""
        return max(_USUAL_CLAIM, self.min_new_traces)

    @property
    def remembered_held_out(self) -> int:
        """Held-out traces whose ids are remembered: as many as came while the replay buffer filled."""
        return math.ceil(self.replay_traces * self.holdout_share / (1.0 - self.holdout_share))

    @property
    def delivery_rules(self) -> DeliveryRules:
        """When a line of drafts serves."""
        error = min(1.0 - self.gate_confidence, math.nextafter(1.0, 0.0))
        return DeliveryRules(PrequentialRules(error=error))

    @property
    def speculator(self) -> str:
        """The draft this process learns: one stream, one board, one queue."""
        return self.buffer.speculator

    @property
    def learn_rules(self) -> LearnRules:
        """When this learner trains and when it rests."""
        return LearnRules(
            mode=LearnMode(self.learn),
            flat_rounds=self.rest_after_rounds,
            flat_requests=self.rest_after_requests,
            cool_down_s=self.cool_down_s,
        )

    @property
    def follows_target(self) -> bool:
        """Return whether the traces say which version the target has, and not this setting."""
        return self.target_version == FOLLOW

    @property
    def recomputed_version(self) -> str | None:
        """The version of the target whose hidden states are recomputed, from the weights on disk; None: of none."""
        if not self.recompute_tokens:
            return None
        return self.target_path_version or (FIRST_VERSION if self.follows_target else self.target_version)

    def target_history(self) -> TargetHistory:
        """The target's versions before any trace: those that are named, and none of a target that is followed.

        ValueError when versions are named that do not end with the target's.
        """
        if self.follows_target and not self.target_versions:
            age = _FOLLOWED_AGE if self.target_max_age is None else self.target_max_age
            return TargetHistory(self.target, age)
        age = self.target_max_age or 0
        return TargetHistory(self.target, age, known_targets(self.target_version, self.target_versions, age))

    @property
    def tracking_uri(self) -> str:
        """Where MLflow keeps runs: the setting or, without one, a SQLite file in the data folder."""
        return tracking_uri(self.mlflow_uri, self.data_dir)

    @property
    def registered_model(self) -> str:
        """Name of the speculator's experiment and registered model in MLflow."""
        return registered_model(self.speculator)

    @property
    def versions_dir(self) -> Path:
        """Published weights, one folder per version; servers read them here."""
        return self.data_dir / "versions" / self.speculator

    @property
    def checkpoints_dir(self) -> Path:
        """Return what a restarted learner continues from; nobody else reads it."""
        return self.data_dir / "checkpoints" / self.speculator

    @property
    def queue(self) -> str:
        """Celery queue of this speculator's learning rounds."""
        return f"paceline.learn.{self.speculator}"


def tracking_uri(mlflow_uri: str, data_dir: Path) -> str:
    """Where MLflow keeps runs, by the settings of these names."""
    # MLflow decodes the path; a question mark would end it.
    file = str((data_dir / "mlflow.db").absolute()).replace("%", "%25").replace("?", "%3F")
    return mlflow_uri or f"sqlite:///{file}"


def registered_model(speculator: str) -> str:
    """Return what a speculator's drafts are called in MLflow together."""
    return f"paceline-{speculator}"


def from_env(environ: Mapping[str, str] = os.environ) -> LearnerConfig:
    """Read the settings. ConfigError names what is missing, unknown, or cannot be read."""
    settings = read_settings(environ)
    settings.require_known()
    return configured(LearnerConfig, settings, buffer=configured(BufferConfig, settings))


def quiet_mlflow() -> None:
    """Set what MLflow reads while it is imported: no telemetry, no progress bars, short waits for a dead server.

    Values that are set already are kept. Call before the first import of mlflow.
    """
    for key, value in _MLFLOW_ENV.items():
        os.environ.setdefault(key, value)


_MLFLOW_ENV: Mapping[str, str] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # A learning round must not hang for minutes when the tracking server is down; the next one registers the version.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


@dataclass(frozen=True, slots=True)
class TrackingConfig:
    """Where a command finds a speculator's drafts in MLflow. ConfigError when a setting is wrong."""

    data_dir: Path = setting("DATA_DIR")
    mlflow_uri: str = setting("MLFLOW_URI")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def uri(self) -> str:
        """Where MLflow keeps runs."""
        return tracking_uri(self.mlflow_uri, self.data_dir)

    def model(self, speculator: str) -> str:
        """Name of a speculator's registered model."""
        return registered_model(speculator)
