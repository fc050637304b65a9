"""The dashboards as the files that Grafana reads."""

from collections.abc import Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from .faster import FASTER
from .fresh import FRESH
from .last_swap import LAST_SWAP
from .loop import LOOP
from .panels import Page

FOLDER = Path(__file__).parent / "boards"

#: File name -> dashboard, in the order of the questions.
DASHBOARDS: Mapping[str, Page] = {
    "1_faster.json": FASTER,
    "2_fresh.json": FRESH,
    "3_last_swap.json": LAST_SWAP,
    "4_loop.json": LOOP,
}


def as_text(name: str) -> str:
    """The JSON of one dashboard, keys sorted."""
    return JSONEncoder(indent=2, sort_keys=True).encode(DASHBOARDS[name].made().build()) + "\n"


def write(folder: Path = FOLDER) -> None:
    """Write all of them to `folder`, in place of those that are there."""
    folder.mkdir(exist_ok=True)
    for name in DASHBOARDS:
        (folder / name).write_text(as_text(name), encoding="utf-8")
