"""One run of the demo's main job by one side: prompts and initial draft are drawn from a seed, both sides get the same.

Whatever revision it is, the demo is used as it is. It is given its prompts as a file, finds the target in its folder
of data, and an initial draft drawn from the seed where it looks for one; a demo that has --seed is told it as well, and
one that has --no-speed compares no servers at the end.
"""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...rig.foreground import run_to_its_end
from ...rig.machine import machine
from ...rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from ...rig.models.target import TargetModel, ensure_random_draft, load_tokenizer
from ...rig.prompts import domain_prompts
from . import recorded_run
from .reading import recorded
from .recorded_run import Conditions, RecordedRun
from .side import Side

_SHOWN_LINES = 15


@dataclass(frozen=True, slots=True)
class Job:
    """What every run is asked to do."""

    target: TargetModel
    requests: int
    max_tokens: int

    def conditions(self, side: Side, seed: int) -> Conditions:
        """Those of one run on this machine."""
        settings = dict(side.settings)
        return Conditions(side.commit, settings, seed, self.requests, self.max_tokens, self.target.key, machine())


def ensure_run(side: Side, seed: int, job: Job, folder: Path) -> RecordedRun:
    """The run kept in `folder`, else a new one, minutes on both cores, of which that file and the logs are kept.

    SystemExit when the demo fails, with the end of its log, and as recorded_run.kept does.
    """
    conditions = job.conditions(side, seed)
    known = recorded_run.kept(folder, conditions)
    if known is not None:
        return known
    data_dir = folder.absolute() / "data"
    shutil.rmtree(data_dir, ignore_errors=True)  # of a run that was interrupted
    began_s = time.monotonic()
    _run_demo(side, arguments(side, seed, job, data_dir), folder / "demo.log")
    run = recorded(data_dir, job.target, conditions, time.monotonic() - began_s)
    recorded_run.save(folder, run)
    shutil.rmtree(data_dir)
    return run


def arguments(side: Side, seed: int, job: Job, data_dir: Path) -> list[str]:
    """Fill `data_dir` and return the demo's options."""
    (data_dir / "drafts").mkdir(parents=True)
    (data_dir / "targets").symlink_to(job.target.folder.absolute().parent)
    ensure_random_draft(job.target.folder, data_dir / "drafts" / job.target.key, seed)
    prompts = data_dir / "prompts.jsonl"
    prompts.write_text("".join(f"{line}\n" for line in prompt_lines(job, seed)), encoding="utf-8")
    options = {
        "--requests": job.requests,
        "--max-tokens": job.max_tokens,
        "--prompts": prompts,
        "--data-dir": data_dir,
        "--json": data_dir.parent / "demo.json",
    }
    help_text = side.demo_help()
    if "--seed" in help_text:
        options["--seed"] = seed
    flags = ["--no-speed"] if "--no-speed" in help_text else []
    return [*(str(word) for option in options.items() for word in option), *flags]


def prompt_lines(job: Job, seed: int) -> list[str]:
    """The prompts that the demo draws for `seed`, code and then prose, as lines of its file of prompts."""
    held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
    tokenizer = load_tokenizer(job.target.folder)
    drawn = domain_prompts(held_out, tokenizer, job.requests // len(held_out), seed)
    texts = [tokenizer.decode(list(prompt.input_ids), skip_special_tokens=False) for prompt in drawn]
    return [json.dumps({"text": text, "domain": prompt.domain}) for prompt, text in zip(drawn, texts, strict=True)]


def _run_demo(side: Side, options: Sequence[str], log: Path) -> None:
    command = side.python("-m", "paceline.cli", "demo", *options)
    code = run_to_its_end(command, log, side.root)
    if code:
        end = "\n".join(log.read_text(encoding="utf-8").splitlines()[-_SHOWN_LINES:])
        raise SystemExit(
            f"{side.name} at {side.commit[:12]}: the demo ended with code {code}; the end of {log}:\n{end}"
        )
