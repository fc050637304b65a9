"""Lines that were trained once are kept, and used again by every bench that judges on them."""

from pathlib import Path

from rich.console import Console

from ...rig.progress import progress_bar
from ..learning.lab import Lab
from .line import Job, trained_line
from .matrix import Matrix, load_matrix
from .pool import Pool
from .streams import drawn


def kept_line(lab: Lab, pool: Pool, job: Job, folder: Path, chunk_requests: int, console: Console) -> Matrix:
    """The matrix of a line: read from `folder`, else trained, which takes about a minute, and kept there."""
    path = folder / f"{job.name}-{chunk_requests}-{pool.fingerprint}.npz"
    if not path.exists():
        requests = drawn(job.plan, pool, job.seed, chunk_requests)
        with progress_bar(job.name, console) as report:
            matrix = trained_line(lab, job, requests, report)
        matrix.save(path)
        console.print(f"{job.name}: {matrix.card['seconds']:.0f} s", highlight=False)
    return load_matrix(path)
