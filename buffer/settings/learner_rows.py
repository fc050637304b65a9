"""The learner's rows of the table of settings."""

from pathlib import Path
from typing import Final, Literal

from ..plain_text import masked
from .kinds import Count, Interval, Name, Portion, Remembered, Seconds, Share, Text, Whole
from .setting import Setting

LEARNER_ROWS: Final = (
    Setting("TARGET_PATH", Path, None, "Folder or Hugging Face id of the served model.", unset="required"),
    Setting("DRAFT", Path, None, "Folder or Hugging Face id of the draft the servers started with.", unset="required"),
    Setting("DATA_DIR", Path, Path(".paceline"), "Folder of versions, checkpoints and registrations not yet sent."),
    Setting("MLFLOW_URI", str, "", "MLflow tracking server.", unset="a SQLite file in the data folder", mask=masked),
    Setting(
        "MLFLOW_PAGES",
        str,
        "",
        "Address of MLflow's pages as a browser reaches it, for links to drafts.",
        unset="PACELINE_MLFLOW_URI where that is a server",
        mask=masked,
    ),
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
    Setting(
        "REST_AFTER_ROUNDS", Count, 6, "Learning rounds in a row without a better draft before a rest.", unit="rounds"
    ),
    Setting(
        "REST_AFTER_REQUESTS",
        Remembered,
        200,
        "Requests since the last better draft before a rest, however many learning rounds they make.",
        unit="requests",
    ),
    Setting("COOL_DOWN_S", Seconds, 60.0, "Shortest rest.", unit="s"),
    Setting("TRACE_TTL_S", Seconds, 0.0, "Age at which a trace is no longer learned from; 0: it always is.", unit="s"),
    Setting(
        "TARGET_MAX_AGE",
        Whole,
        None,
        "How many earlier target versions are trained on; the traces of each count half of those of the next.",
        unit="versions",
        unset="2 where the learner follows the target, else 0",
    ),
    Setting(
        "TARGET_VERSIONS",
        tuple[str, ...],
        (),
        "History of the target, oldest first, ending with PACELINE_TARGET_VERSION.",
        unset="versions are whole numbers that count up",
    ),
    Setting(
        "MIN_NEW_TRACES",
        Count,
        40,
        "Fewer leave a learning round idle, unless they fill half of the buffer or have waited PACELINE_MAX_WAIT_S.",
        unit="traces",
    ),
    Setting(
        "MAX_WAIT_S",
        Seconds,
        600.0,
        "A learning round starts, with however few traces, once the oldest pending one has waited so long; 0: never.",
        unit="s",
    ),
    Setting("REPLAY_TRACES", Count, 200, "Learned traces kept for replay.", unit="traces"),
    Setting("PASSES", Count, 4, "Training passes over every new trace, at most.", unit="passes"),
    Setting(
        "TRAINING_SHARE",
        Portion,
        0.6,
        "Part of the time between two learning rounds that training may take. Where that is not enough, a learner "
        "passes less often over its traces, to the nearest whole number and at least once. 0: always PACELINE_PASSES "
        "(docs/learning.md).",
    ),
    Setting(
        "CONTEXT_WEIGHT",
        Portion,
        1.0,
        "How much a token of a prompt counts in training against one with a verdict, while nothing is accepted; less, "
        "the more is. 0: prompts are not trained on (docs/learning.md).",
    ),
    Setting("HOLDOUT_SHARE", Share, 0.1, "Share of requests, by hash, that are never trained on."),
    Setting(
        "GATE_CONFIDENCE",
        Share,
        0.9,
        "1 minus the chance that a line of drafts that never gains ever goes live (docs/learning.md).",
    ),
    Setting(
        "DRAFT_STEPS",
        Count,
        None,
        "Draft steps the learner trains; changing them restarts the optimiser.",
        unit="steps",
        unset="as many as the widest trace has",
    ),
    Setting(
        "BATCH_TOKENS",
        Count,
        8192,
        "Tokens of a batch that go through the learner's device at once, padding included: what its memory must hold.",
        unit="tokens",
    ),
    Setting(
        "OBJECTIVE",
        Literal["committed", "soft", "target_only", "rejection", "matched"],
        "soft",
        "What the draft is trained towards (docs/learning.md).",
    ),
    Setting("DEVICE", Text, "auto", "Device of the learner, as torch names it; auto: CUDA where there is a GPU."),
    Setting(
        "RECOMPUTE_TOKENS",
        Whole,
        0,
        "Tokens that go through the target at once to recompute the hidden states of traces that hold none, e.g. 8192; "
        "0: such traces are refused. The device must hold the target too (docs/operations.md).",
        unit="tokens",
    ),
    Setting(
        "TARGET_PATH_VERSION",
        Text,
        None,
        "Version of the weights in PACELINE_TARGET_PATH: the one whose hidden states can be recomputed.",
        unset="PACELINE_TARGET_VERSION where that names one, else 0",
    ),
    Setting("ROUND_INTERVAL_S", Interval, 30.0, "Time between the starts of two learning rounds.", unit="s"),
    Setting(
        "ROUND_LEASE_S", Interval, 60.0, "A learner that is killed frees its speculator after this time.", unit="s"
    ),
    Setting(
        "CANARY_LIMIT_S",
        Seconds,
        1800.0,
        "An undecided canary is rolled back after this time; 0: no canaries, versions go live at once.",
        unit="s",
    ),
    Setting(
        "KEPT_VERSIONS",
        Count,
        8,
        "Newest versions whose weights stay on disk, besides the live one and the one before it.",
        unit="versions",
    ),
    Setting(
        "KEPT_CHECKPOINTS",
        Whole,
        1,
        "Checkpoints kept beside the newest: as many of the newest drafts `paceline reproduce` can fit again. Each has "
        "three times the size of a float32 draft.",
        unit="checkpoints",
    ),
)
