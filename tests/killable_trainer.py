"""A trainer that tests kill: `python killable_trainer.py URL WEIGHTS VERSION` pushes half of its weights, and waits.

It says "half" on its output once the server has most of the tensors and the update is open.
"""

import sys
import threading
from collections.abc import Iterator

from paceline import Rollouts
from safetensors.torch import load_file
from torch import Tensor

#: A tensor is sent when the next but one is asked for.
_NOT_SENT = 3


def half(weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """All tensors but the last ones; then wait for ever."""
    yield from list(weights.items())[:-_NOT_SENT]
    sys.stdout.write("half\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    url, file, version = sys.argv[1:]
    with Rollouts(url) as rollouts:
        rollouts.sync_weights(half(load_file(file)), version, bucket_bytes=1)
