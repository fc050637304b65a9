"""The untrained draft that the demo and the benches begin with on a target with a large vocabulary."""

from pathlib import Path
from tempfile import TemporaryDirectory

from ...learner.first_draft import make_first_draft
from ...learner.model.draft_io import target_config
from .corpus import CERTAIN_DOMAINS, load_corpus
from .target import TargetModel

#: A draft of a target with more tokens may propose the most frequent ones of local text: a smaller head costs less.
DRAFT_WORDS = 8192
_COUNTED_CHARS = 4_000_000


def small_draft(target: TargetModel, data_dir: Path) -> Path:
    """An untrained draft for the target, made once: reading what its tokens are counted in takes some ten seconds."""
    folder = data_dir / "drafts" / f"{target.key}-{DRAFT_WORDS}"
    if folder.exists():
        return folder
    if int(target_config(target.folder)["vocab_size"]) <= DRAFT_WORDS:
        make_first_draft(target.folder, folder, report=lambda _: None)
        return folder
    corpus = load_corpus(CERTAIN_DOMAINS)
    with TemporaryDirectory() as scratch:
        text = Path(scratch) / "counted.txt"
        each = _COUNTED_CHARS // len(CERTAIN_DOMAINS)
        parts = ["\n".join(corpus[domain].training)[:each] for domain in CERTAIN_DOMAINS]
        text.write_text("\n".join(parts), encoding="utf-8", errors="replace")
        make_first_draft(target.folder, folder, (text,), size=DRAFT_WORDS, report=lambda _: None)
    return folder
