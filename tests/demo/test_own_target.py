"""The demo on a target that it did not train: found, given a draft and prompts, and told how long it takes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from paceline.buffer.errors import ConfigError
from paceline.demo import own_target
from paceline.demo.own_target import (
    answer_line,
    compared_answers,
    device_flags,
    expected_tokens_per_s,
    find_target,
    own_prompts,
)
from paceline.policies.acceptance import Tally
from paceline.rig.models import small_draft
from paceline.rig.models.corpus import CERTAIN_DOMAINS, DomainText
from paceline.rig.models.target import load_tokenizer, train_tokenizer
from paceline.rig.progress import quiet
from paceline.rig.prompts import PROMPT_TOKENS, Prompt
from paceline.rig.traffic import Served
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = "{% for each in messages %}{{ each.content }}{% endfor %}{% if add_generation_prompt %} answer:{% endif %}"
TEXT = [" ".join(f"rider{number} holds the wheel" for number in range(300))]


def a_target(folder: Path, template: str | None) -> Path:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TEXT)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 8, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=1024, **sizes)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> Path:
    return a_target(tmp_path_factory.mktemp("chats"), TEMPLATE)


def test_a_folder_is_a_target_whose_key_tells_it_from_another_folder_of_that_name(chats: Path, tmp_path: Path) -> None:
    found = find_target(str(chats), tmp_path, quiet)
    other = a_target(tmp_path / chats.name, TEMPLATE)
    assert (found.folder, found.key.startswith(chats.name)) == (chats, True)
    assert find_target(str(other), tmp_path, quiet).key != found.key


def test_what_is_no_target_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got neither a folder nor a copy in the Hugging Face cache"):
        find_target("nobody/nothing", tmp_path, quiet)
    with pytest.raises(ConfigError, match=r"config.json: "):
        find_target(str(tmp_path), tmp_path, quiet)


@pytest.mark.parametrize(("most", "words"), [(1024, 1024), (300, 300)])
def test_its_draft_may_propose_all_tokens_of_a_small_vocabulary_and_the_frequent_ones_of_a_large_one(
    chats: Path, tmp_path: Path, monkeypatch, most: int, words: int
) -> None:
    monkeypatch.setattr(small_draft, "DRAFT_WORDS", most)
    corpus = dict.fromkeys(CERTAIN_DOMAINS, DomainText(tuple(TEXT), ()))  # the real one takes seconds to read
    monkeypatch.setattr(small_draft, "load_corpus", lambda _: corpus)
    target = find_target(str(chats), tmp_path, quiet)
    draft = small_draft.small_draft(target, tmp_path)
    assert json.loads((draft / "config.json").read_text())["draft_vocab_size"] == words
    written = (draft / "model.safetensors").stat().st_mtime_ns
    assert small_draft.small_draft(target, tmp_path) == draft
    assert (draft / "model.safetensors").stat().st_mtime_ns == written


def test_a_target_with_a_template_is_asked_chats_and_one_without_it_text(chats: Path, tmp_path: Path) -> None:
    asked = own_prompts(find_target(str(chats), tmp_path, quiet), tmp_path, 8, seed=0)
    assert [prompt.domain for prompt in asked] == 4 * ["explain"] + 4 * ["summary"]
    tokenizer = load_tokenizer(chats)
    assert all(tokenizer.decode(prompt.input_ids).endswith(" answer:") for prompt in asked)
    plain = find_target(str(a_target(tmp_path / "plain", None)), tmp_path, quiet)
    assert {len(prompt.input_ids) for prompt in own_prompts(plain, tmp_path, 8, seed=0)} == {PROMPT_TOKENS}


def test_the_expected_speed_is_that_of_multiplying_all_weights_once_a_step(chats: Path, monkeypatch) -> None:
    took = SimpleNamespace(blocked_autorange=lambda **_: SimpleNamespace(median=0.25))
    monkeypatch.setattr(own_target, "Timer", lambda *_, **__: took)
    config = LlamaForCausalLM.from_pretrained(chats)
    weights = sum(weight.numel() for weight in config.parameters())
    quick, slow = expected_tokens_per_s(chats, concurrency=4)
    assert quick == pytest.approx(2 * 4 / (0.25 * weights / 4096**2), rel=0.1)  # the file has a header as well
    assert slow == pytest.approx(quick / 4)


@pytest.mark.parametrize(
    ("has_gpu", "flags", "compared"), [(False, ["--dtype", "float32"], 10), (True, ["--device", "cuda"], 0)]
)
def test_on_a_gpu_the_servers_dtype_stays_and_no_answer_is_compared(monkeypatch, has_gpu, flags, compared) -> None:
    monkeypatch.setattr(own_target.torch.cuda, "is_available", lambda: has_gpu)
    assert (device_flags(), compared_answers()) == (flags, compared)


def test_an_answer_is_one_line_for_a_reader() -> None:
    tokenizer = train_tokenizer(TEXT)
    served = Served(
        prompt=Prompt("explain-0001", "explain", ()),
        sent_at=0.0,
        arrivals=(),
        output_ids=tuple(tokenizer.encode("rider1 holds\n\nthe wheel").ids),
        finish="stop",
        tally=Tally(),
        retractions=0,
    )
    assert answer_line(tokenizer, served) == "explain-0001: rider1 holds the wheel"
