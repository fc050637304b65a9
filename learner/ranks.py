"""A learner on several devices: what torchrun starts once for each of them.

Rank 0 is the Celery worker, with the lease, the buffer, the board and the checkpoint. The others only train with it.
"""

import os
import sys
from typing import NoReturn

import torch
from torch.distributed import get_node_local_rank

from ..buffer.retention import forbid_core_dumps
from .app import check_start, run_worker
from .config import LearnerConfig, from_env
from .model.draft_io import load_draft
from .recovery import device_of, find_models
from .training.rank_group import Fit, joining
from .training.trainer import DraftTrainer

_NO_BEAT = "--no-beat"
#: torchrun starts the ranks so many times again: each time costs the learning round in which one of them ended.
_RESTARTS = 1000


def launch(nproc_per_node: int, *, beat: bool) -> NoReturn:
    """Become torchrun, which starts so many ranks on this machine and starts all again when one of them fails.

    Raises as run_worker does at its start: torchrun would start again what can never work.
    """
    check_start(from_env())
    flags = ["--standalone", f"--nproc-per-node={nproc_per_node}", f"--max-restarts={_RESTARTS}"]
    # One store for all attempts would tell new ranks where those before them listened.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # noqa: TID251 - set, for torchrun alone
    ours = ["-m", __name__, *([] if beat else [_NO_BEAT])]
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *flags, *ours])  # noqa: S606 - ourselves


def main() -> None:
    """Be one rank until a signal ends it, or rank 0 does."""
    config = from_env()
    if config.buffer.keeps_nothing:
        forbid_core_dumps()  # every rank is sent traces
    device = device_of(config.device)
    if device.type == "cuda":
        device = torch.device("cuda", get_node_local_rank())
        torch.cuda.set_device(device)  # "cuda" alone means this one from here on
    with joining(device) as ranks:
        if ranks.rank == 0:
            run_worker(config, beat=_NO_BEAT not in sys.argv)
        else:
            ranks.follow(lambda fit: _trainer(config, device, fit))


def _trainer(config: LearnerConfig, device: torch.device, fit: Fit) -> DraftTrainer:
    """A trainer of the draft that the settings name; all that it has learnt comes from rank 0."""
    models = find_models(config)
    draft = load_draft(models.initial(), models.embedding, models.head)
    return DraftTrainer(draft.to(device), fit.plan, target_versions=fit.target_versions)


if __name__ == "__main__":
    main()
