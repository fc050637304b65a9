"""Models and files of the bench: a target over every text domain of this machine, its drafts and its traces."""

from dataclasses import dataclass
from pathlib import Path

from ...buffer.errors import ConfigError
from ...rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from ...rig.models.target import TargetModel, ensure_random_draft, ensure_target
from ...rig.models.training import TrainPlan
from ...rig.progress import Report, quiet
from ..gpu.models import SIZES, train_plan
from .programme import Setting

#: Traffic shifts to the last one that this machine has.
DOMAINS = (*CERTAIN_DOMAINS, "html", "c")
#: Seconds that a target on a GPU is trained for; the demo's own has its own time.
GPU_TRAIN_S = 600.0
#: The same for a tiny one: the demo's own time.
TARGET_TRAIN_S = TrainPlan().seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Models and folders of one target; holds paths alone, so that it can be sent to another process."""

    data_dir: Path
    target: TargetModel
    domains: tuple[str, ...]
    size: str = "tiny"  # of gpu.models.SIZES
    device: str = "cpu"  # that serves and trains, as torch names it

    @property
    def draft_layers(self) -> tuple[int, ...]:
        """Target layers whose outputs its drafts read."""
        return SIZES[self.size].draft_layers

    @property
    def shifted(self) -> str:
        """The domain that no warm head was trained on."""
        return self.domains[-1]

    @property
    def folder(self) -> Path:
        """What belongs to this target alone."""
        return self.data_dir / "learning" / self.target.key

    def trace_file(self, setting: Setting) -> Path:
        """Where the traces of a setting are, or will be."""
        return self.folder / f"{setting.name}.traces"

    def random_head(self, seed: int) -> Path:
        """An untrained draft, written when it is not there."""
        return ensure_random_draft(self.target.folder, self.folder / f"random-{seed}", seed, self.draft_layers)

    @property
    def warm_head(self) -> Path:
        """Where the head trained on all domains but the shifted one is; see warm.ensure_warm_head."""
        return self.folder / f"warm-without-{self.shifted}"


def open_lab(
    data_dir: Path, report: Report = quiet, *, size: str = "tiny", device: str = "cpu", train_s: float = TARGET_TRAIN_S
) -> Lab:
    """Find the domains and train the target over them unless `data_dir` has it: minutes the first time.

    A tiny target is trained for `train_s`: a busy machine needs more of them. Another time makes another target.
    """
    domains = tuple(domain for domain in DOMAINS if _is_here(domain))
    plan = TrainPlan(seconds=train_s) if size == "tiny" else train_plan(size, GPU_TRAIN_S)
    architecture = SIZES[size].architecture
    target = ensure_target(data_dir, plan, domains, report, architecture=architecture, device=device)
    found = TargetModel(target.folder.absolute(), target.key, {}, target.steps)
    return Lab(data_dir=data_dir.absolute(), target=found, domains=domains, size=size, device=device)


def _is_here(domain: str) -> bool:
    try:
        load_corpus((domain,))
    except ConfigError:
        return False
    return True
