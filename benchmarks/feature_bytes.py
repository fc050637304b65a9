"""What the features of a trace cost and bring, in every form that a trace can hold them: recorded traces, re-encoded.

    python -m paceline.benchmarks.feature_bytes                       # traces of the learning bench, drafts of 3
    python -m paceline.benchmarks.feature_bytes --traces FILE --start FOLDER    # others

Needs no server: `benchmarks.learning.record` makes the file. For each form, as captured, int8, fp8 and tokens alone
with recomputed features: bytes per token on the wire; how far the features are off; the share of served verify rounds
in which replay of the draft that served counts what was accepted; and the accept length that an untrained draft
reaches when it learns from them and is judged, on other requests, by the features that a server would give it.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..buffer.feature_rows import FeatureDtype, quantised
from ..buffer.trace import DraftTrace
from ..buffer.trace_codec import decode_trace, encode_trace
from ..learner.judging.paired_replay import tallies
from ..learner.judging.replay import replay_traces
from ..learner.model.draft_io import load_draft, load_target_embedding
from ..learner.model.eagle3 import Eagle3Draft
from ..learner.model.target_features import TargetFeatures
from ..learner.training.plan import TrainingPlan
from ..learner.training.trainer import DraftTrainer
from ..policies.acceptance import Tally, identity
from ..rig.machine import machine
from ..rig.trace_file import read_card, read_traces
from .learning.figures import Mean, gains
from .learning.stream import with_top_k
from .measure.command_line import benchmark_parser

#: Where the learning bench keeps the traces that this one reads by default.
RECORDED = "learning/*/t0-k3.traces"
#: Teacher entries that a server keeps of a greedy request; the recording has more.
TOP_K = 1
COLUMNS = (
    "features", "bytes per token", "µs per token to encode", "off by", "rounds replayed as served",
    "accept length learnt", "over the first",
)  # fmt: skip
CPU = torch.device("cpu")
CONFIG_FILE = "config.json"
#: Tokens that go through the target at once.
PART_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Form:
    """One way to hold features: what is sent, and what a learner makes of it."""

    name: str
    sent: Callable[[DraftTrace], DraftTrace]
    read: Callable[[DraftTrace], DraftTrace]


@dataclass(frozen=True, slots=True)
class Row:
    """What was found of one form."""

    name: str
    bytes_per_token: float
    encoding_us: float  # per token: what the courier takes to round and encode
    off: float  # root mean square of what features are off, over that of the features
    equal: int  # rounds replayed as served
    compared: int
    lengths: tuple[float, ...]  # accept length learnt, by seed


def main() -> None:
    """Read, measure every form, print the table."""
    options = parse()
    path = options.traces or newest_recorded(options.data_dir)
    card = read_card(path)
    target = options.target or options.data_dir / "targets" / card["target"]
    embedding = load_target_embedding(target)
    served = load_draft(options.draft or Path(card["head"]), embedding)
    start = options.start or path.parent / "random-0"
    whole = [with_top_k(trace, TOP_K) for trace in read_traces(path)]
    known = [trace for trace in whole if trace.has_whole_prefix and trace.replay_exact]
    learnt, judged = split(known, options.learn, options.judge)
    with tempfile.TemporaryDirectory() as scratch:
        halved = in_bfloat16(target, Path(scratch))
        whole_and_half = (TargetFeatures(it, served.config, CPU, PART_TOKENS) for it in (target, halved))
        rows = [
            measured(form, learnt, judged, served, lambda: load_draft(start, embedding), range(options.seeds))
            for form in forms(*whole_and_half)
        ]
    print(
        f"{path.name}: {len(learnt)} traces learnt, {len(judged)} judged; {len(whole) - len(known)} of {len(whole)} "
        f"left out, whose beginning or replay is not known; {options.seeds} seeds; {machine()}\n"
    )
    print(table(rows))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("feature_bytes", __doc__)
    parser.add_argument("--data-dir", type=Path, default=Path(".paceline"), help="of the learning bench")
    parser.add_argument("--traces", type=Path, metavar="FILE", help=f"recorded traces (the newest {RECORDED})")
    parser.add_argument("--target", type=Path, metavar="FOLDER", help="that served them (as the file says)")
    parser.add_argument("--draft", type=Path, metavar="FOLDER", help="that served them (as the file says)")
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="draft that learns (random-0 beside the file)")
    parser.add_argument("--learn", type=int, default=96, help="traces learnt (96)")
    parser.add_argument("--judge", type=int, default=96, help="traces judged on, and replayed (96)")
    parser.add_argument("--seeds", type=int, default=3, help="orders in which they are learnt (3)")
    return parser.parse_args()


def newest_recorded(data_dir: Path) -> Path:
    """The file recorded last; exits when there is none."""
    found = sorted(data_dir.glob(RECORDED), key=lambda path: path.stat().st_mtime)
    if not found:
        raise SystemExit(
            f"{data_dir}: got no {RECORDED}, expected recorded traces; make them by "
            "python -m paceline.benchmarks.learning.record --settings t0-k3"
        )
    return found[-1]


def split(traces: Sequence[DraftTrace], learn: int, judge: int) -> tuple[list[DraftTrace], list[DraftTrace]]:
    """Traces to learn and others to judge by, both from all over the recording. Exits when there are too few."""
    if len(traces) < learn + judge:
        raise SystemExit(f"got {len(traces)} traces that can be used, expected {learn + judge}")
    order = np.random.default_rng(0).permutation(len(traces))
    chosen = [traces[i] for i in order[: learn + judge]]
    return chosen[:learn], chosen[learn:]


def in_bfloat16(target: Path, folder: Path) -> Path:
    """The same target in `folder`, to be computed in bfloat16: another config beside links to its files."""
    for file in target.iterdir():
        (folder / file.name).symlink_to(file.absolute())
    (folder / CONFIG_FILE).unlink()
    config = json.loads((target / CONFIG_FILE).read_text(encoding="utf-8"))
    (folder / CONFIG_FILE).write_text(json.dumps({**config, "dtype": "bfloat16"}), encoding="utf-8")
    return folder


def forms(source: TargetFeatures, halved: TargetFeatures) -> list[Form]:
    """Every form that a trace can hold features in; the first is the one that others are compared with.

    `halved` is `source` in bfloat16: what rounding does that the server did not do.
    """
    return [
        Form("as captured", lambda trace: trace, lambda trace: trace),
        *(Form(name, as_kind(kind), lambda trace: trace) for name, kind in QUANTISED.items()),
        Form("tokens alone", without_features, lambda trace: source.read(trace).trace),
        Form("tokens alone, in bfloat16", without_features, lambda trace: halved.read(trace).trace),
    ]


QUANTISED = {"int8": FeatureDtype.INT8, "fp8 (e4m3)": FeatureDtype.E4M3}


def as_kind(kind: FeatureDtype) -> Callable[[DraftTrace], DraftTrace]:
    """What a server with this PACELINE_FEATURE_FORMAT sends of a trace."""

    def sent(trace: DraftTrace) -> DraftTrace:
        codes, scales = quantised(trace.features, trace.feature_dtype, kind)
        return replace(trace, features=codes, feature_scales=scales, feature_dtype=kind, replay_exact=False)

    return sent


def without_features(trace: DraftTrace) -> DraftTrace:
    """What a server with PACELINE_CAPTURE_FEATURES=0 sends of a trace."""
    return replace(trace, features=trace.features[:0], replay_exact=False)


def measured(
    form: Form,
    learnt: Sequence[DraftTrace],
    judged: Sequence[DraftTrace],
    served: Eagle3Draft,
    start: Callable[[], Eagle3Draft],
    seeds: Sequence[int],
) -> Row:
    """All figures of one form. Trains once per seed."""
    began_s = time.perf_counter()
    sent = {trace.trace_id: encode_trace(form.sent(trace)) for trace in (*learnt, *judged)}
    took_s = time.perf_counter() - began_s
    tokens = sum(len(trace.tokens) for trace in (*learnt, *judged))
    read = {name: form.read(decode_trace(raw)) for name, raw in sent.items()}
    equal, compared = replayed_as_served(judged, [read[trace.trace_id] for trace in judged], served)
    steps = served_steps(judged)
    lengths = tuple(accept_length(start(), [read[t.trace_id] for t in learnt], judged, steps, seed) for seed in seeds)
    off = how_far_off(judged, [read[trace.trace_id] for trace in judged])
    size = sum(map(len, sent.values())) / tokens
    return Row(form.name, size, 1e6 * took_s / tokens, off, equal, compared, lengths)


def served_steps(traces: Sequence[DraftTrace]) -> int:
    """Draft steps of the server."""
    return max(int(trace.rounds.drafted.shape[1]) for trace in traces)


def how_far_off(captured: Sequence[DraftTrace], read: Sequence[DraftTrace]) -> float:
    """Root mean square of the difference between features read and captured, over that of the captured ones."""
    wanted = [trace.feature_numbers() for trace in captured]
    apart = [there.feature_numbers()[: len(rows)] - rows for there, rows in zip(read, wanted, strict=True)]
    return float(np.sqrt(sum(np.square(d).sum() for d in apart) / sum(np.square(rows).sum() for rows in wanted)))


def replayed_as_served(
    captured: Sequence[DraftTrace], read: Sequence[DraftTrace], draft: Eagle3Draft
) -> tuple[int, int]:
    """Rounds in which replay of `read` counts what the server accepted, and rounds compared."""
    # No exact replay is claimed of most forms; here it is asked how near they come.
    runs = replay_traces(draft, read, served_steps(captured))
    pairs = [identity(trace, run) for trace, run in zip(captured, runs, strict=True)]
    return sum(equal for equal, _ in pairs), sum(compared for _, compared in pairs)


def accept_length(
    draft: Eagle3Draft, learnt: Sequence[DraftTrace], judged: Sequence[DraftTrace], steps: int, seed: int
) -> float:
    """Accept length on `judged` of a draft that has learnt `learnt` as a learner would in its first round."""
    DraftTrainer(draft, TrainingPlan(steps=steps, seed=seed)).fit(learnt, [])
    return sum(tallies(draft, judged, steps).values(), Tally()).accept_length


def table(rows: Sequence[Row]) -> str:
    """Markdown; gains are over the first row, paired by seed."""
    lines = [f"| {' | '.join(COLUMNS)} |", "| --- " * len(COLUMNS) + "|"]
    for row in rows:
        gain = "" if row is rows[0] else gains(row.lengths, rows[0].lengths).text(3)
        share = f"{row.equal} of {row.compared} ({row.equal / row.compared:.2%})"
        length = Mean.of(row.lengths).text(3)
        costs = f"{row.bytes_per_token:.1f} | {row.encoding_us:.1f}"
        lines.append(f"| {row.name} | {costs} | {row.off:.1e} | {share} | {length} | {gain} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
