"""Models and files of the bench: a target with its drafts and traces, and the prompts that it is served."""

from dataclasses import dataclass
from pathlib import Path

from ...buffer.errors import ConfigError
from ...learner.disk import write_folder
from ...learner.model.draft_io import load_draft, load_target_embedding, random_draft
from ...rig.chat.streams import STREAMS, chat_prompts
from ...rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from ...rig.models.small_draft import small_draft
from ...rig.models.smollm2 import ensure_smollm2
from ...rig.models.target import DRAFT_LAYERS, TargetModel, chat_template, ensure_random_draft, ensure_target
from ...rig.models.training import TrainPlan
from ...rig.progress import Report, quiet
from ...rig.prompts import Prompt
from ..measure.measured_server import held_out_prompts
from .programme import Setting

#: Text of this machine that a small target continues; traffic shifts to the last that it has.
DOMAINS = (*CERTAIN_DOMAINS, "html", "c")
#: Which prompts of a domain are recorded, and in which order.
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Models and folders of one target; holds paths alone, so that it can be sent to another process."""

    data_dir: Path
    target: TargetModel
    domains: tuple[str, ...]
    is_chat: bool = False  # the target is a chat model, and the domains are streams of rig.chat
    device: str = "cpu"  # that serves and trains, as torch names it

    @property
    def folder(self) -> Path:
        """What belongs to this target alone."""
        return self.data_dir / "learning" / self.target.key

    def shifted(self, named: str) -> str:
        """The domain that traffic shifts to: `named`, or the last where that is empty."""
        return named or self.domains[-1]

    def trace_file(self, setting: Setting, domain: str) -> Path:
        """Where the traces of a setting and domain are, or will be."""
        return self.folder / setting.name / f"{domain}.traces"

    def prompts(self, domain: str, count: int) -> list[Prompt]:
        """The first `count` prompts of a domain. Raises ConfigError when it has fewer."""
        if not self.is_chat:
            return held_out_prompts(self.target, count, SEED, (domain,))
        template = chat_template(self.target.folder)
        assert template is not None
        return chat_prompts(domain, self.data_dir, count, SEED, template=template)

    def random_head(self, seed: int) -> Path:
        """An untrained draft, written when it is not there; a chat model's proposes few tokens: small_draft.py."""
        folder = self.folder / f"random-{seed}"
        if not self.is_chat:
            return ensure_random_draft(self.target.folder, folder, seed, DRAFT_LAYERS)
        if not folder.exists():
            small = load_draft(small_draft(self.target, self.data_dir), load_target_embedding(self.target.folder))
            ids = small.draft_to_target_V.tolist()
            write_folder(folder, lambda place: random_draft(self.target.folder, place, seed, draft_ids=ids))
        return folder

    def unknown(self, shifted: str) -> tuple[str, ...]:
        """The domains that a warm head must not know when traffic shifts to `shifted`.

        Of a chat model the half of the streams that has it: two heads, each of which takes long, do for all eight.
        """
        if not self.is_chat:
            return (shifted,)
        middle = len(self.domains) // 2
        return next(half for half in (self.domains[:middle], self.domains[middle:]) if shifted in half)

    def warm_head(self, shifted: str) -> Path:
        """Where the head trained on all domains but `unknown` is; see warm.ensure_warm_head."""
        return self.folder / f"warm-without-{'-'.join(self.unknown(shifted))}"


def open_lab(data_dir: Path, report: Report = quiet, *, is_chat: bool = False, device: str = "cpu") -> Lab:
    """Fetch the chat model, or train the demo's target over every domain of this machine: minutes the first time."""
    data_dir = data_dir.absolute()
    if is_chat:
        target = ensure_smollm2(data_dir, report)
        domains = tuple(STREAMS)
    else:
        domains = tuple(domain for domain in DOMAINS if _is_here(domain))
        target = ensure_target(data_dir, TrainPlan(), domains, report, device=device)
    return Lab(data_dir=data_dir, target=target, domains=domains, is_chat=is_chat, device=device)


def _is_here(domain: str) -> bool:
    try:
        load_corpus((domain,))
    except ConfigError:
        return False
    return True
