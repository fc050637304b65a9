"""Memory and tokens per second of one training batch: all its logits at once, and in chunks as the learner does.

A draft of Llama 3's proportions (a key-value head to four query heads, an MLP of 3.5 times the hidden size) with random
weights, on random tokens and features: neither memory nor time depends on what they are. Measured are forward and
backward pass of the objective `soft` with a teacher of four tokens, without the optimiser: the most that tensors take
at once on top of draft and batch, gradients included, and tokens per second; on a CPU per second of processor time,
which other work on the machine changes little. A small machine carries few rows: give them smaller chunks than the
learner's, and read from two numbers of rows what each further one takes. One matrix serves as embedding and as head,
which spares memory and changes no figure.

    python -m paceline.benchmarks.training_memory --vocabulary 32000 --rows 512 1024
        [--device cuda] [--hidden 4096] [--steps 5] [--trace-rows 32] [--chunk-mib 1024] [--repeats 3]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from ..learner.model.eagle3 import Eagle3Config, Eagle3Draft
from ..learner.model.logits import CHUNK_BYTES
from ..learner.training.batch import Batch
from ..learner.training.device_memory import has_bfloat16
from ..learner.training.scoring import BatchScores, score_batch, score_text, unrolled
from ..policies.objectives.names import Objective, Weighting
from ..policies.objectives.table import OBJECTIVES
from ..rig.machine import machine
from ..rig.ratio import ratio
from .measure.command_line import benchmark_parser
from .measure.paired import in_rounds
from .measure.peak_memory import peak_bytes

SOFT = OBJECTIVES[Objective.SOFT]
TEACHER_TOKENS = 4
MIB = 2**20


def main() -> None:
    """Measure and print."""
    options = parse()
    draft = random_draft(options.hidden, options.vocabulary).to(options.device)
    bfloat16 = has_bfloat16(draft.device)
    print(f"machine: {machine()}; device {options.device}, multiplied in {'bfloat16' if bfloat16 else 'float32'}")
    sizes = f"hidden {options.hidden}, vocabulary {options.vocabulary}, {options.steps} steps"
    print(f"{sizes}, chunks of {options.chunk_mib} MiB, traces of {options.trace_rows} rows; {options.repeats} repeats")
    print("| rows | scored (row, step) | MiB: all logits | chunks | tokens/s: all logits | chunks | time, paired |")
    print("|---|---|---|---|---|---|---|")
    for rows in options.rows:
        batch = random_batch(draft, rows, options.trace_rows)
        print(line(draft, batch, options.steps, options.chunk_mib * MIB, options.repeats), flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = benchmark_parser("training_memory", __doc__)
    parser.add_argument("--vocabulary", type=int, default=32_000, help="tokens of target and draft (32000)")
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 1024], help="rows of a batch (512 1024)")
    parser.add_argument("--trace-rows", type=int, default=32, help="rows of a trace, which divide those (32)")
    parser.add_argument("--chunk-mib", type=int, default=CHUNK_BYTES // MIB, help="bound on a chunk (the learner's)")
    parser.add_argument("--hidden", type=int, default=4096, help="hidden size, a multiple of 512 (4096)")
    parser.add_argument("--steps", type=int, default=5, help="draft steps (5)")
    parser.add_argument("--repeats", type=int, default=3, help="timed pairs (3)")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="as torch names it (cpu)")
    return parser.parse_args()


def random_draft(hidden: int, vocabulary: int) -> Eagle3Draft:
    """A draft on the CPU, with torch's own initial weights."""
    heads = hidden // 128
    config = Eagle3Config(
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        head_dim=128,
        vocab_size=vocabulary,
        draft_vocab_size=vocabulary,
    )
    draft = Eagle3Draft(config, torch.empty(vocabulary, hidden))
    draft.embedding_WH = draft.lm_head.weight.detach()
    return draft


def random_batch(draft: Eagle3Draft, rows: int, trace_rows: int) -> Batch:
    """`rows` rows in traces of `trace_rows`, each of which predicts a token inside its trace at its first step."""
    traces, tokens, width = rows // trace_rows, trace_rows + 2, draft.config.feature_width
    noise = torch.Generator().manual_seed(0)
    ids_BTK = torch.randint(draft.config.vocab_size, (traces, tokens, TEACHER_TOKENS), generator=noise)
    return Batch(
        tokens_BT=ids_BTK[..., 0].to(draft.device),
        lengths_B=torch.full((traces,), tokens, device=draft.device),
        features_BFD=torch.randn(traces, trace_rows, width, generator=noise).to(draft.device),
        rows_BQ=torch.arange(trace_rows, device=draft.device).expand(traces, trace_rows),
        row_mask_BQ=torch.ones(traces, trace_rows, dtype=torch.bool, device=draft.device),
        rejection_B=torch.zeros(traces, dtype=torch.bool, device=draft.device),
        teacher_ids_BTK=ids_BTK.to(draft.device),
        teacher_probs_BTK=torch.full(ids_BTK.shape, 1 / TEACHER_TOKENS, device=draft.device),
    )


def line(draft: Eagle3Draft, batch: Batch, steps: int, chunk_bytes: int, repeats: int) -> str:
    """One row of the table."""
    ways, peaks = ways_of(draft, batch, steps, chunk_bytes), dict[str, float]()
    for name, way in ways.items():
        draft.zero_grad()  # before, as the record does not know of memory that was taken earlier
        peaks[name] = peak_bytes(way, draft.device) / MIB
    seconds = in_rounds({name: timed(way, draft) for name, way in ways.items()}, repeats, seed=0)
    tokens = int(batch.lengths_B.sum())
    rate = {name: tokens / statistics.median(found) for name, found in seconds.items()}
    paired = ratio(seconds["chunks"], seconds["all"]).spread.text(2)
    sizes = f"{int(batch.row_mask_BQ.sum())} | {int(batch.scored_mask(steps).sum())}"
    memory = f"{peaks['all']:.0f} | {peaks['chunks']:.0f}"
    return f"| {sizes} | {memory} | {rate['all']:.1f} | {rate['chunks']:.1f} | {paired} |"


def ways_of(draft: Eagle3Draft, batch: Batch, steps: int, chunk_bytes: int) -> Mapping[str, Callable[[], None]]:
    """Forward and backward pass with the logits of all positions at once, and in chunks."""

    def passing(score: Callable[[], BatchScores]) -> Callable[[], None]:
        def once() -> None:
            with torch.autocast(draft.device.type, torch.bfloat16, enabled=has_bfloat16(draft.device)):
                scores = score()
            scores.loss.backward()  # type: ignore[no-untyped-call]

        return once

    return {
        "all": passing(lambda: score_text(unrolled(draft, batch, steps, SOFT), batch, Weighting.GEOMETRIC, SOFT)),
        "chunks": passing(lambda: score_batch(draft, batch, steps, Weighting.GEOMETRIC, SOFT, chunk_bytes)),
    }


def timed(work: Callable[[], None], draft: Eagle3Draft) -> Callable[[], float]:
    """Seconds that `work` takes: of the processor's time on a CPU, else until the device is done."""
    on_cuda = draft.device.type == "cuda"
    clock = time.perf_counter if on_cuda else time.process_time

    def seconds() -> float:
        draft.zero_grad()
        started = clock()
        work()
        if on_cuda:
            torch.cuda.synchronize(draft.device)
        return clock() - started

    return seconds


if __name__ == "__main__":
    main()
