"""The one table of settings: every name, default, range and unit of paceline."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from ..plain_text import masked
from .kinds import Count, Name, PacingName, Portion, Seconds, StoreUri, Text, Whole
from .learner_rows import LEARNER_ROWS
from .setting import Reader, Setting

#: Where the learner and the commands look for Redis. A server captures nothing until it is given a URL.
LOCAL_REDIS: Final = "redis://127.0.0.1:6379/0"

#: Value of TARGET_VERSION that is no version: traces say which one it is.
FOLLOW: Final = "follow"
#: Version of a target whose version nobody has named.
FIRST_VERSION: Final = "0"

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
        "Redis that holds traces and versions: redis://, rediss:// (verified TLS), unix:// or sentinel://.",
        unset=f"servers capture nothing; the learner and the commands use {LOCAL_REDIS}",
        mask=masked,
    ),
    Setting("REDIS_CA", str, None, "PEM file of the CA of Redis' certificate.", unset="the system's certificates"),
    Setting("SPECULATOR", Name, "default", "One draft and its traffic: part of every Redis key, folder and queue."),
    Setting("TARGET", Text, "target", "Name of the served model. Learners refuse traces that name another one."),
    Setting(
        "TARGET_VERSION",
        Text,
        None,
        "Version of the served model's weights, where SGLang names none; `follow`: learners take the newest in traces.",
        unset="servers: 0; learners: `follow`",
    ),
    Setting(
        "VERSIONS_URI",
        StoreUri,
        "",
        "Store by which drafts reach servers, and a learner's checkpoints another machine, as fsspec names it: "
        "s3://bucket/folder, gs://, az://, hf://, file:// (docs/operations.md). Servers fetch from nowhere else.",
        unset="servers mount the learner's PACELINE_DATA_DIR",
        mask=masked,
    ),
    Setting(
        "CACHE_DIR", Path, Path("~/.cache/paceline"), "Drafts that were fetched, or joined into one safetensors file."
    ),
    Setting("BUFFER_MAX_BYTES", Count, 1024**3, "Traces kept in Redis; the oldest are removed first.", unit="bytes"),
    Setting(
        "BUFFER_MAX_AGE_S",
        Annotated[float, Meta(ge=0.001)],
        86_400.0,
        "Age at which traces, which hold user content, are removed from Redis, acked or not.",
        unit="s",
    ),
    Setting(
        "BUFFER_CLAIM_IDLE_MS",
        Whole,
        600_000,
        "A trace that was claimed this long ago and never acked is given to the next claim.",
        unit="ms",
    ),
    Setting(
        "RETENTION",
        Literal["disk", "memory"],
        "disk",
        "Where prompts, tokens and hidden states may be; memory: on no disk, also none of Redis (docs/operations.md).",
    ),
    Setting(
        "PAYLOAD_KEY_FILE",
        str,
        None,
        "File with 64 hexadecimal digits: the key by which traces are encrypted before Redis gets them.",
        unset="Redis has traces in the clear",
    ),
)

_SERVING = (
    Setting("REPLICA", str, "", "Name of this server alone, in heartbeats and traces.", unset="its host name and port"),
    Setting(
        "DRAFT_VERSION",
        Annotated[int, Meta(ge=-1)],
        0,
        "Number on the board of the draft weights that the server starts with.",
    ),
    Setting(
        "VERSIONS_CACHE_BYTES",
        Count,
        16 << 30,
        "Fetched drafts kept in PACELINE_CACHE_DIR; those that were not used for longest leave first.",
        unit="bytes",
    ),
    Setting(
        "SAMPLE_RATE",
        Portion,
        1.0,
        "Share of requests that are captured, chosen by a hash of the request id.",
    ),
    Setting(
        "CAPTURE_FEATURES",
        bool,
        True,
        "Whether traces hold the target's hidden states; 0 keeps tokens alone, for learners that recompute the states.",
    ),
    Setting(
        "FEATURE_FORMAT",
        Literal["captured", "int8", "fp8"],
        "captured",
        "How traces hold hidden states: as captured, or in one byte per value with a scale per token, which no replay "
        "is exact with (docs/operations.md).",
    ),
    Setting(
        "TEACHER_TOP_K",
        Whole,
        4,
        "The target's most likely tokens kept at every verified position of a sampled request; 0 keeps none.",
        unit="tokens",
    ),
    Setting(
        "CAPTURE_MEMORY_BYTES",
        Annotated[int, Meta(ge=2)],
        512 << 20,
        "Memory for capture: half for the queue to the courier, half for traces that wait while Redis is away.",
        unit="bytes",
    ),
    Setting(
        "TRACE_TOKENS",
        Annotated[int, Meta(ge=16)],
        2048,
        "A longer request is split into traces of this length, each with a quarter of it as context.",
        unit="tokens",
    ),
    Setting(
        "CANARY_REQUESTS",
        Annotated[int, Meta(ge=30)],
        400,
        "A canary on this server is decided after so many requests at the latest.",
        unit="requests",
    ),
    Setting(
        "CANARY_TURN_S",
        Seconds,
        None,
        "On a single server, canary and live version take turns of this length; 0: no canary on a single server.",
        unit="s",
        unset="30 where replay cannot judge a draft, else 0",
    ),
    Setting(
        "STAGGER_S",
        Seconds,
        5.0,
        "A server takes a new live version this long after the one whose name comes before its own; 0: all at once.",
        unit="s",
    ),
    Setting(
        "PACING",
        PacingName,
        PacingName.GOODPUT,
        "How a server started with --speculative-adaptive chooses the number of draft steps; off: by SGLang's rule.",
    ),
    Setting(
        "PACING_COSTS",
        str,
        "",
        "File of step costs that `paceline pacing-costs` writes, needed where several ranks must choose alike.",
        unset="the server measures its costs",
    ),
    Setting(
        "CATCH_UP_BYTES",
        Whole,
        None,
        "Hidden states kept while nothing is drafted, from which the draft's cache is caught up; 0: the draft runs at "
        "every step.",
        unit="bytes",
        unset="67108864 on a CPU server with one rank and without overlap schedule, else 0",
    ),
    Setting(
        "CPU_HOST",
        bool,
        None,
        "Whether SGLang runs on paceline's CPU kernels.",
        unset="yes with `paceline serve -- --device cpu`",
    ),
)

_COMMAND_LINE = (
    Setting(
        "OPERATOR_TOKEN",
        str,
        None,
        "Token that promote, rollback, forget and token set ask for once one is set.",
        unset="no token is shown",
        mask=lambda _: "***",
    ),
)

#: Every setting, grouped by who reads it.
SETTINGS: Final[tuple[Setting, ...]] = (
    *_BUFFER,
    *(replace(row, reader=Reader.SERVING) for row in _SERVING),
    *(replace(row, reader=Reader.LEARNER) for row in LEARNER_ROWS),
    *(replace(row, reader=Reader.COMMAND_LINE) for row in _COMMAND_LINE),
)

#: By name without PACELINE_.
BY_NAME: Final = {row.name: row for row in SETTINGS}
