"""Answers are compared with plain greedy decoding, token by token."""

from pathlib import Path

import pytest
import torch
from paceline.demo.lossless import Lossless, lossless_check
from paceline.policies.acceptance import Tally
from paceline.rig.models.target import greedy
from paceline.rig.prompts import Prompt
from paceline.rig.traffic import Arrival, Served
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

WORDS = 32


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """An untrained Llama of one layer: greedy decoding of it is as definite as of any other."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **sizes)).save_pretrained(folder)
    return folder


def served(name: str, output: tuple[int, ...], sent_at: float = 0.0, finish: str = "length") -> Served:
    return Served(
        prompt=Prompt(name, "py", (5, 6, 7)),
        sent_at=sent_at,
        arrivals=(Arrival(1.0, 4),),
        output_ids=output,
        finish=finish,
        tally=Tally(0, 0),
        retractions=0,
    )


def test_a_single_wrong_or_missing_token_is_found(target: Path) -> None:
    right = greedy(AutoModelForCausalLM.from_pretrained(target).eval(), (5, 6, 7), 4)
    wrong = (*right[:3], (right[3] + 1) % WORDS)
    outputs = {"right": right, "wrong": wrong, "short": right[:3], "unanswered": ()}
    found = lossless_check(target, [served(name, output) for name, output in outputs.items()], 4)
    assert (found.checked, found.identical, found.different) == (4, 1, ("wrong", "short", "unanswered"))


def test_nothing_is_read_where_nothing_is_compared(tmp_path: Path) -> None:
    assert lossless_check(tmp_path / "gone", [served("a", (1, 2))], 4, count=0) == Lossless(0, ())


def test_an_answer_that_the_model_ended_is_compared_as_far_as_it_goes(target: Path) -> None:
    right = greedy(AutoModelForCausalLM.from_pretrained(target).eval(), (5, 6, 7), 4)
    ended = [served("ended", right[:3], finish="stop"), served("wrong", (*right[:2], right[2] + 1), finish="stop")]
    assert lossless_check(target, ended, 4).different == ("wrong",)
