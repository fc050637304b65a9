"""Where the bench works: the demo's target over every domain this machine has, its drafts and its trace files."""

from dataclasses import dataclass
from pathlib import Path

from paceline.buffer.errors import ConfigError
from paceline.demo.corpus import CERTAIN_DOMAINS, load_corpus
from paceline.demo.progress import Report, quiet
from paceline.demo.target import TargetModel, ensure_random_draft, ensure_target
from paceline.demo.training import TrainPlan

from learning.setting import Setting

#: The last one found is the domain that traffic shifts to.
DOMAINS = (*CERTAIN_DOMAINS, "html", "c")


@dataclass(frozen=True, slots=True)
class Lab:
    """Models and folders of one target; holds paths alone, so that it can be sent to another process."""

    data_dir: Path
    target: TargetModel
    domains: tuple[str, ...]

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
        return ensure_random_draft(self.target.folder, self.folder / f"random-{seed}", seed)

    @property
    def warm_head(self) -> Path:
        """Where the head trained on all domains but the shifted one is; see warm.ensure_warm_head."""
        return self.folder / f"warm-without-{self.shifted}"


def open_lab(data_dir: Path, report: Report = quiet) -> Lab:
    """Find the domains and train the target over them unless `data_dir` has it: minutes the first time."""
    domains = tuple(domain for domain in DOMAINS if _is_here(domain))
    target = ensure_target(data_dir, TrainPlan(), domains, report)
    return Lab(data_dir.absolute(), TargetModel(target.folder.absolute(), target.key, {}, target.steps), domains)


def _is_here(domain: str) -> bool:
    try:
        load_corpus((domain,))
    except ConfigError:
        return False
    return True
