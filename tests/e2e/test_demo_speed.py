"""The servers that the demo compares at its end: real ones, of a deepened target, whose answers are all the same."""

import io
import json
import math
import re

import pytest
from paceline.demo import speed
from paceline.rig.deployment import LocalDeployment
from paceline.rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from paceline.rig.models.deepened import LAYERS
from paceline.rig.models.target import TargetModel, load_tokenizer
from paceline.rig.prompts import domain_prompts
from rich.console import Console

pytestmark = [pytest.mark.e2e, pytest.mark.servers]

PROMPTS, TOKENS = 8, 24


def test_three_servers_of_the_deepened_target_give_the_same_answers(models, tmp_path, monkeypatch):
    folder, draft = models
    monkeypatch.setattr(speed, "ASKING_S", math.inf)  # two blocks, of which the first one is not counted
    held_out = {name: domain.held_out for name, domain in load_corpus(CERTAIN_DOMAINS).domains.items()}
    prompts = domain_prompts(held_out, load_tokenizer(folder), PROMPTS // len(held_out), seed=0)
    console = Console(file=io.StringIO(), width=200)
    (tmp_path / "target").symlink_to(folder)
    target = TargetModel(tmp_path / "target", folder.name, {}, 0)
    (tmp_path / "run" / "logs").mkdir(parents=True)
    local = LocalDeployment.on_free_ports(tmp_path / "run")
    speed.print_speed(console, target, (draft, draft), prompts=prompts, max_tokens=TOKENS, local=local)
    text = console.file.getvalue()
    config = json.loads((tmp_path / f"target-{LAYERS}-layers" / "config.json").read_text())
    assert config["num_hidden_layers"] == LAYERS
    rows = {meaning: re.search(rf"│ {meaning} +│ (\S+).*│ (\d+) of (\d+)", text) for meaning in speed.MEANING.values()}
    assert all(rows.values()), text
    over_plain, others, answers = ([float(row[n]) for row in rows.values()] for n in (1, 2, 3))
    assert (over_plain[0], others) == (1.0, [0.0] * 3)
    assert answers == [speed.CONCURRENCY] * 3
    assert all(ratio > 0.0 for ratio in over_plain)
