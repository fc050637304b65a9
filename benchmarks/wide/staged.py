"""A draft of a real width on its way into a server, up to the copy into SGLang's model: that needs SGLang."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ...buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ...learner.model.draft_io import save_draft
from ...serving.swap.staging import read_layout, stage
from .fitting import random_draft


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """Medians of some repeats, in seconds."""

    hidden: int
    file_bytes: int
    tensor_bytes: int  # in host memory, once staged
    digest_s: float  # reading the file and digesting it in pieces
    stage_s: float
    busy_s: float  # beside a thread that never lets go of Python's lock by itself
    copy_s: float  # from host memory into tensors of the same shapes

    def line(self) -> str:
        """One row of the table."""
        sizes = f"{self.file_bytes / 1e6:,.0f} | {self.tensor_bytes / 1e6:,.0f}"
        seconds = (self.stage_s, self.busy_s, self.digest_s, self.copy_s)
        return f"| {self.hidden} | {sizes} | {' | '.join(f'{each:.2f}' for each in seconds)} |"


def staged(folder: Path, hidden: int, vocabulary: int, repeats: int) -> StagedFile:
    """Save a random draft as the learner does, and stage it as a server does; blocks on the disk."""
    draft = random_draft(hidden, vocabulary)
    draft.file_dtypes = {name: torch.bfloat16 for name, _ in draft.named_parameters()}
    digest = save_draft(draft, folder)
    del draft
    layout = read_layout(folder)
    file = folder / WEIGHTS_FILE
    stage_s = []
    busy_s = []
    digest_s = []
    copy_s = []
    tensor_bytes = 0
    for _ in range(repeats):
        found = stage(file, digest, layout, torch.bfloat16, is_pinned=False)
        stage_s.append(found.seconds)
        with busy_thread():
            busy_s.append(stage(file, digest, layout, torch.bfloat16, is_pinned=False).seconds)
        began_s = time.perf_counter()
        sha256_of(file)
        digest_s.append(time.perf_counter() - began_s)
        live = [torch.zeros_like(tensor) for _, tensor in found.tensors]
        began_s = time.perf_counter()
        for there, (_, tensor) in zip(live, found.tensors, strict=True):
            there.copy_(tensor)
        copy_s.append(time.perf_counter() - began_s)
        tensor_bytes = sum(tensor.nbytes for tensor in live)
    return StagedFile(
        hidden=hidden,
        file_bytes=file.stat().st_size,
        tensor_bytes=tensor_bytes,
        digest_s=statistics.median(digest_s),
        stage_s=statistics.median(stage_s),
        busy_s=statistics.median(busy_s),
        copy_s=statistics.median(copy_s),
    )


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that runs Python and nothing else."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
