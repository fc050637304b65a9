"""Makes the first draft of a target that has none: untrained, in the layout that SGLang reads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote

from transformers import AutoTokenizer

from ..buffer.config import BufferConfig
from ..buffer.drafts.checkpoint import CONFIG_FILE, local_folder
from ..buffer.drafts.mtp_layer import is_mtp
from ..buffer.errors import ConfigError, told
from ..buffer.redis_client import connect
from ..buffer.settings.fields import configured
from ..buffer.settings.sources import Settings
from ..buffer.settings.table import LOCAL_REDIS
from ..buffer.stream.redis_stream import RedisTraceBuffer
from ..buffer.stream.trace_buffer import TraceBuffer
from .disk import write_folder
from .model.draft_io import random_draft, target_config
from .model.draft_vocabulary import DraftVocabulary, choose, count_tokens

#: Lines that are split into tokens at once.
_LINES = 1000
#: The newest traces of the buffer that are read: enough for the ranks of frequent tokens.
_TRACES = 5000
#: Types that a server computes in, as a config names them.
_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class FirstDraft:
    """The draft that was written, and its target."""

    target: Path
    folder: Path
    vocabulary: DraftVocabulary
    words: int  # of the target


def make_first_draft(
    target: str | Path,
    out: Path,
    text: Sequence[Path] = (),
    *,
    traffic: TraceBuffer | None = None,
    size: int | None = None,
    report: Callable[[str], object] = print,
) -> FirstDraft:
    """Write an untrained EAGLE-3 head for `target`, a folder or a Hugging Face id, into the new folder `out`.

    Its sizes and its dtype are the target's; it reads the layers that SGLang captures by default. The tokens it may
    propose are the `size` most frequent ones of the files `text` and of the traces in `traffic` (see `choose`).
    Blocks on the disk. ConfigError when `out` exists, the target has an MTP layer, or target, tokenizer or a text
    cannot be read.
    """
    if out.exists():
        raise ConfigError(f"{out}: got a folder that exists, expected a new one; name another with --out")
    folder = local_folder(target)
    if is_mtp(folder / CONFIG_FILE):
        raise ConfigError(
            f"{target}: got a target with an MTP layer of its own, expected one without a draft: serve it with "
            f"--speculative-algorithm NEXTN --speculative-draft-model-path {target}, and set PACELINE_DRAFT={target}"
        )
    config = target_config(folder)
    words = config.get("vocab_size")
    if type(words) is not int or words < 1:
        raise ConfigError(f"{folder}: got vocab_size {words!r} in its config, expected a whole number above 0")
    counts = count_tokens(_tokens(folder, text, traffic), words)
    vocabulary = choose(counts, size, _special(config), report)
    dtype = next((name for name in _DTYPES if name == (config.get("dtype") or config.get("torch_dtype"))), _DTYPES[0])
    try:
        write_folder(out, lambda new: random_draft(folder, new, 0, draft_ids=vocabulary.ids, dtype=dtype))
    except OSError as error:
        raise ConfigError(f"--out {out}: {told(error)}") from error
    return FirstDraft(folder, out, vocabulary, words)


def _special(config: dict[str, object]) -> set[int]:
    """Ids that end or begin a text, as a number or a list of them."""
    given = (config.get(name) for name in ("bos_token_id", "eos_token_id"))
    return {token for ids in given for token in (ids if isinstance(ids, list) else [ids]) if isinstance(token, int)}


def _tokens(target: Path, text: Sequence[Path], traffic: TraceBuffer | None) -> Iterator[Sequence[int]]:
    if text:
        yield from _tokens_of_text(target, text)
    for entry in () if traffic is None else traffic.replay(_TRACES):
        yield entry.trace.tokens.tolist()


def _tokens_of_text(target: Path, text: Sequence[Path]) -> Iterator[Sequence[int]]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    except Exception as error:  # tokenizers raise no type of their own
        raise ConfigError(f"{target}: got {error}, expected the tokenizer of the target") from error
    for path in text:
        for lines in _batches(path):
            yield from tokenizer(lines, add_special_tokens=False).input_ids


def _batches(path: Path) -> Iterator[list[str]]:
    """The lines of a text file, their ends included, so many at a time."""
    try:
        with path.open(encoding="utf-8") as file:
            yield from iter(lambda: _some(file), [])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: got {error}, expected a text file in UTF-8") from error


def _some(lines: Iterable[str]) -> list[str]:
    return list(islice(lines, _LINES))


def init_draft(
    target: str,
    out: Path,
    *,
    text: Sequence[Path],
    size: int | None,
    settings: Settings | None,
    chain_flags: str,
) -> str:
    """Do as `make_first_draft` with the traffic in the Redis of `settings`; return what was made and how to use it.

    `chain_flags` are SGLang's flags for a chain of drafts. Raises BufferUnavailable when Redis does not answer.
    """
    notes: list[str] = []
    traffic = None if settings is None else _buffer(settings)
    made = make_first_draft(target, out, text, traffic=traffic, size=size, report=notes.append)
    chosen = made.vocabulary
    share = "" if chosen.coverage is None else f", {chosen.coverage:.1%} of the {chosen.counted} that were counted"
    model = quote(target)
    draft = quote(str(out))
    flags = f"--model-path {model} --speculative-algorithm EAGLE3 --speculative-draft-model-path {draft} {chain_flags}"
    lines = (
        f"{out}: an untrained draft that may propose {len(chosen.ids)} of {made.words} tokens{share}",
        *notes,
        f"serve it:  PACELINE_REDIS_URL=redis://... paceline serve -- {flags}",
        f"train it:  PACELINE_REDIS_URL=redis://... PACELINE_TARGET_PATH={model} PACELINE_DRAFT={draft} paceline learn",
    )
    return "\n".join(lines)


def _buffer(settings: Settings) -> TraceBuffer:
    config = configured(BufferConfig, settings)
    if config.keeps_nothing:
        raise ConfigError(
            "--traffic: got PACELINE_RETENTION=memory, expected disk: the draft's file would hold the tokens of traffic"
        )
    client = connect(settings.value("REDIS_URL") or LOCAL_REDIS, settings.value("REDIS_CA"))
    return RedisTraceBuffer(client, config)
