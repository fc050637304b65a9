"""The one table of settings: every name, default, range and unit of paceline."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from ..masking import masked
from .kinds import Count, Interval, Name, Seconds, Share, Text, Whole
from .pacing_names import PacingName
from .setting import Reader, Setting

#: Where the learner and the commands look for Redis. A server captures nothing until it is given a URL.
LOCAL_REDIS: Final = "redis://127.0.0.1:6379/0"

_BUFFER = (
    Setting(
        "CONFIG",
        Path,
        None,
        "TOML file with further settings; a variable of the environment wins over it.",
        unset="`paceline.toml` in the working directory, if there is one",
    ),
    Setting(
        "REDIS_URL",
        str,
        None,
        "Redis that holds traces and versions: redis://, rediss:// (verified TLS) or unix://.",
        unset=f"servers capture nothing; the learner and the commands use {LOCAL_REDIS}",
        mask=masked,
    ),
    Setting("REDIS_CA", str, None, "PEM file of the CA of Redis' certificate.", unset="the system's certificates"),
    Setting("SPECULATOR", Name, "default", "One draft and its traffic: part of every Redis key, folder and queue."),
    Setting("TARGET", Text, "target", "Name of the served model; the same on servers and learner, which needs it."),
    Setting("TARGET_VERSION", Text, "0", "Version of the served model's weights; the same on servers and learner."),
    Setting("BUFFER_MAX_BYTES", Count, 1024**3, "Traces kept in Redis; the oldest are removed first.", "bytes"),
    Setting(
        "BUFFER_MAX_AGE_S",
        Annotated[float, Meta(ge=0.001)],
        86_400.0,
        "Age at which traces, which hold user content, are removed from Redis, acked or not.",
        "s",
    ),
    Setting(
        "BUFFER_CLAIM_IDLE_MS",
        Whole,
        600_000,
        "A trace that was claimed this long ago and never acked is given to the next claim.",
        "ms",
    ),
)

_SERVING = (
    Setting("REPLICA", str, "", "Name of this server in heartbeats and traces.", unset="its host name and port"),
    Setting(
        "DRAFT_VERSION",
        Annotated[int, Meta(ge=-1)],
        0,
        "Number on the board of the draft weights that the server starts with.",
    ),
    Setting(
        "SAMPLE_RATE",
        Annotated[float, Meta(ge=0, le=1)],
        1.0,
        "Share of requests that are captured, chosen by a hash of the request id.",
    ),
    Setting(
        "CAPTURE_FEATURES",
        bool,
        True,
        "Whether traces hold the target's hidden states; without them capture is cheaper, but nothing can be learned.",
    ),
    Setting(
        "TEACHER_TOP_K",
        Whole,
        4,
        "The target's most likely tokens kept at every verified position of a sampled request; 0 keeps none.",
        "tokens",
    ),
    Setting(
        "CAPTURE_MEMORY_BYTES",
        Annotated[int, Meta(ge=2)],
        512 << 20,
        "Memory for capture: half for the queue to the courier, half for traces that wait while Redis is away.",
        "bytes",
    ),
    Setting(
        "TRACE_TOKENS",
        Annotated[int, Meta(ge=16)],
        2048,
        "A longer request is split into traces of this length, each with a quarter of it as context.",
        "tokens",
    ),
    Setting(
        "CANARY_REQUESTS",
        Annotated[int, Meta(ge=30)],
        400,
        "A canary on this server is decided after so many requests at the latest.",
        "requests",
    ),
    Setting(
        "CANARY_TURN_S",
        Seconds,
        0.0,
        "On a single server, canary and live version take turns of this length; 0: no canary on a single server.",
        "s",
    ),
    Setting("STAGGER_S", Seconds, 5.0, "Time between two servers that take a new live version; 0: all at once.", "s"),
    Setting(
        "PACING",
        PacingName,
        PacingName.GOODPUT,
        "Who chooses the number of draft steps on a server started with --speculative-adaptive.",
    ),
    Setting(
        "PACING_COSTS",
        str,
        "",
        "File of step costs, needed where several ranks must choose alike.",
        unset="the server measures its costs",
    ),
    Setting(
        "CPU_HOST",
        bool,
        None,
        "Whether SGLang runs on paceline's CPU kernels.",
        unset="yes with `paceline serve -- --device cpu`",
    ),
)

_LEARNER = (
    Setting(
        "TARGET_PATH",
        Path,
        None,
        "Folder of the served model; its embedding is shared with the draft.",
        unset="required",
    ),
    Setting("DRAFT", Path, None, "Folder of the draft that the servers were started with.", unset="required"),
    Setting("DATA_DIR", Path, Path(".paceline"), "Folder of versions, checkpoints and registrations not yet sent."),
    Setting("MLFLOW_URI", str, "", "MLflow tracking server.", unset="a SQLite file in the data folder", mask=masked),
    Setting(
        "LEARNER",
        Name,
        None,
        "Name of this learner, different for every process and the same at every start.",
        unset="`learner-` and the host name",
    ),
    Setting(
        "LEARN",
        Literal["drift", "always", "never"],
        "drift",
        "Which learning rounds train: as traffic drifts, all, or none. Traces not trained on are kept for replay.",
    ),
    Setting("REST_AFTER_ROUNDS", Count, 6, "Learning rounds in a row without a better draft before a rest.", "rounds"),
    Setting("COOL_DOWN_S", Seconds, 60.0, "Shortest rest.", "s"),
    Setting("TRACE_TTL_S", Seconds, 0.0, "Age at which a trace is no longer learned from; 0: it always is.", "s"),
    Setting(
        "TARGET_MAX_AGE",
        Whole,
        0,
        "How many earlier target versions are trained on; the traces of each count half of those of the next.",
        "versions",
    ),
    Setting(
        "TARGET_VERSIONS",
        tuple[str, ...],
        (),
        "History of the target, oldest first, ending with its version.",
        unset="versions are whole numbers that count up",
    ),
    Setting(
        "MIN_NEW_TRACES",
        Count,
        40,
        "Fewer pending traces leave a learning round idle, unless they fill half of the buffer.",
        "traces",
    ),
    Setting("REPLAY_TRACES", Count, 200, "Learned traces kept for replay.", "traces"),
    Setting("PASSES", Count, 4, "Training passes over every new trace.", "passes"),
    Setting("HOLDOUT_SHARE", Share, 0.1, "Share of requests, by hash, that are never trained on."),
    Setting(
        "HOLDOUT_REQUESTS",
        Annotated[int, Meta(ge=2)],
        48,
        "Latest held-out requests on which candidate and live draft are compared; a sixth of them is the least.",
        "requests",
    ),
    Setting("GATE_CONFIDENCE", Share, 0.95, "Confidence that a candidate is better before it is published."),
    Setting(
        "DRAFT_STEPS",
        Count,
        None,
        "Draft steps the learner trains; changing them restarts the optimiser.",
        "steps",
        unset="as many as the widest trace has",
    ),
    Setting("BATCH_TOKENS", Count, 8192, "What of a batch is on the learner's device at once, with padding.", "tokens"),
    Setting(
        "OBJECTIVE",
        Literal["committed", "soft", "target_only", "rejection", "matched"],
        "soft",
        "What the draft is trained towards (docs/learning.md).",
    ),
    Setting("DEVICE", Text, "auto", "Device of the learner, as torch names it; auto: CUDA where there is a GPU."),
    Setting("ROUND_INTERVAL_S", Interval, 30.0, "Time between the starts of two learning rounds.", "s"),
    Setting("ROUND_LEASE_S", Interval, 60.0, "A learner that is killed frees its speculator after this time.", "s"),
    Setting(
        "CANARY_LIMIT_S",
        Seconds,
        1800.0,
        "An undecided canary is rolled back after this time; 0: no canaries, versions go live at once.",
        "s",
    ),
    Setting(
        "KEPT_VERSIONS",
        Count,
        8,
        "Newest versions whose weights stay on disk, besides the live one and the one before it.",
        "versions",
    ),
)

_COMMAND_LINE = (
    Setting(
        "OPERATOR_TOKEN",
        str,
        None,
        "Token that promote, rollback and token set ask for once one is set.",
        unset="no token is shown",
        mask=lambda _: "***",
    ),
)

#: Every setting, grouped by who reads it.
SETTINGS: Final[tuple[Setting, ...]] = (
    *_BUFFER,
    *(replace(row, reader=Reader.SERVING) for row in _SERVING),
    *(replace(row, reader=Reader.LEARNER) for row in _LEARNER),
    *(replace(row, reader=Reader.COMMAND_LINE) for row in _COMMAND_LINE),
)

#: By name without PACELINE_.
BY_NAME: Final = {row.name: row for row in SETTINGS}
