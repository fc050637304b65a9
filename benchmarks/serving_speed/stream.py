"""The requests of a run: chunks of one domain after the other, each with a block of prompts for every concurrency."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ...buffer.errors import ConfigError
from ...rig.deployment import context_tokens
from ...rig.models.corpus import load_corpus
from ...rig.models.target import TargetModel, load_tokenizer
from ...rig.prompts import Prompt, domain_prompts, read_prompts
from ...rig.speed.arm import PACED_STEPS


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is asked between two looks at the learner: every arm answers every block."""

    number: int  # from 0
    domain: str
    blocks: Mapping[int, tuple[Prompt, ...]]  # concurrency -> prompts

    @property
    def requests(self) -> int:
        """Prompts of all blocks."""
        return sum(map(len, self.blocks.values()))


def drawn(target: TargetModel, wanted: Mapping[str, int], sizes: Mapping[int, int], seed: int) -> list[Chunk]:
    """A stream of held-out text: `wanted` chunks of each domain in its order; `sizes` is concurrency -> prompts.

    ConfigError when a domain has too little text.
    """
    tokenizer = load_tokenizer(target.folder)
    corpus = load_corpus(wanted)
    each = sum(sizes.values())
    prompts = [
        prompt
        for domain, count in wanted.items()
        for prompt in domain_prompts({domain: corpus[domain].held_out}, tokenizer, count * each, seed)
    ]
    return list(cut(prompts, sizes))


def from_file(path: Path, target: TargetModel, sizes: Mapping[int, int], max_tokens: int) -> tuple[list[Chunk], int]:
    """A stream of a user's own prompts in the file's order, and how many at the ends of domains fill no chunk.

    Lines are JSON as in rig.prompts.read_prompts where the first one begins with a brace, else each is a prompt.
    ConfigError for a line that is neither, and for a file with too few of them.
    """
    tokenizer = load_tokenizer(target.folder)
    longest = context_tokens(target.folder) - max_tokens - PACED_STEPS[-1] - 2
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if text and not text.lstrip().startswith("{"):
        lines = [line for line in text.splitlines() if line.strip()]
        ids = [tuple(tokenizer.encode(line).ids[-longest:]) for line in lines]
        prompts = [Prompt(f"own-{number:04d}", "own", each) for number, each in enumerate(ids)]
    else:
        prompts = read_prompts(path, tokenizer, longest)
    chunks = list(cut(prompts, sizes))
    if not chunks:
        raise ConfigError(f"--prompts {path}: got {len(prompts)} prompts, expected at least {sum(sizes.values())}")
    return chunks, len(prompts) - sum(chunk.requests for chunk in chunks)


def cut(prompts: Sequence[Prompt], sizes: Mapping[int, int]) -> Iterator[Chunk]:
    """Whole chunks in the order of `prompts`; what is left of a run of one domain fills none."""
    number = 0
    each = sum(sizes.values())
    for domain, run in groupby(prompts, key=lambda prompt: prompt.domain):
        queue = list(run)
        for begin in range(0, len(queue) - each + 1, each):
            taken = iter(queue[begin : begin + each])
            blocks = {concurrency: tuple(next(taken) for _ in range(size)) for concurrency, size in sizes.items()}
            yield Chunk(number, domain, blocks)
            number += 1


def fingerprint(chunks: Sequence[Chunk]) -> str:
    """What tells two streams apart: domains, blocks and every token of every prompt."""
    shape = [[c.domain, [[n, [prompt.input_ids for prompt in block]] for n, block in c.blocks.items()]] for c in chunks]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]
