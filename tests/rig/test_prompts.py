"""Prompts from held-out text and from a user's file."""

import json

import pytest
from paceline.buffer.errors import ConfigError
from paceline.rig.models.target import chat_template, train_tokenizer
from paceline.rig.prompts import PROMPT_TOKENS, domain_prompts, read_prompts
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for each in messages %}{{ each.role }}: {{ each.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TEXTS = [
    " ".join(f"rider{number} holds wheel{number * 7}" for number in range(start, start + 200)) for start in (0, 500)
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS)


def test_prompts_are_windows_of_one_text_in_domain_order(tokenizer) -> None:
    prompts = domain_prompts({"b": TEXTS, "a": TEXTS[:1]}, tokenizer, per_domain=4, seed=1)
    assert [prompt.request_id for prompt in prompts] == [f"{domain}-000{i}" for domain in "ba" for i in range(4)]
    assert {len(prompt.input_ids) for prompt in prompts} == {PROMPT_TOKENS}
    assert all(any(tokenizer.decode(prompt.input_ids) in text for text in TEXTS) for prompt in prompts)


def test_prompts_of_a_domain_never_repeat_and_depend_on_the_seed(tokenizer) -> None:
    first, again, other = (domain_prompts({"a": TEXTS}, tokenizer, per_domain=8, seed=seed) for seed in (1, 1, 2))
    assert len({prompt.input_ids for prompt in first}) == 8
    assert first == again
    assert first != other


def test_too_little_text_is_refused_with_got_and_expected(tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"domain 'a': got text for \d+, expected 9999"):
        domain_prompts({"a": TEXTS}, tokenizer, per_domain=9999, seed=1)


def test_a_users_file_keeps_its_order_and_domains_and_the_end_of_long_texts(tokenizer, tmp_path) -> None:
    path = tmp_path / "own.jsonl"
    lines = [{"text": TEXTS[0], "domain": "sales"}, {"text": "rider holds"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    long, short = read_prompts(path, tokenizer, max_tokens=20)
    assert (long.request_id, long.domain, len(long.input_ids)) == ("sales-0001", "sales", 20)
    assert TEXTS[0].endswith(tokenizer.decode(long.input_ids))
    assert (short.request_id, tokenizer.decode(short.input_ids)) == ("own-0002", "rider holds")


def test_messages_go_through_the_models_template(tokenizer, tmp_path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE).save_pretrained(tmp_path)
    path = tmp_path / "own.jsonl"
    messages = [{"role": "system", "content": "ride"}, {"role": "user", "content": "who holds wheel7"}]
    path.write_text(json.dumps({"messages": messages, "domain": "chat"}), encoding="utf-8")
    (prompt,) = read_prompts(path, tokenizer, 99, chat_template(tmp_path))
    assert (prompt.request_id, prompt.domain) == ("chat-0001", "chat")
    assert tokenizer.decode(prompt.input_ids) == "system: ride user: who holds wheel7 assistant:"


def test_messages_are_refused_for_a_model_without_a_template(tokenizer, tmp_path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    path = tmp_path / "own.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "a"}]}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r'line 1: got "messages", expected "text" for this model'):
        read_prompts(path, tokenizer, 99, chat_template(tmp_path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{nonsense", r"line 2: got '\{nonsense' \(Expecting property name.*expected a JSON object"),
        (b'{"text": "\xff"}', r"line 2: got .* expected a JSON object"),
        (b"[1, 2]", r"line 2: got '\[1, 2\]', expected a JSON object"),
        (b'{"txt": "a"}', r'line 2: got "text" of None, expected a string that is not empty'),
        (b'{"text": ""}', r"line 2: got \"text\" of '', expected a string that is not empty"),
        (
            b'{"messages": []}',
            r'line 2: got "messages" of \[\], expected \{"role": ..., "content": ...\} with two strings',
        ),
        (b'{"messages": [{"role": "user"}]}', r"line 2: got \"messages\" of \[\{'role': 'user'\}\], expected"),
        (b'{"text": "a", "domain": 3}', r'line 2: got "domain" of 3, expected a string that is not empty'),
    ],
)
def test_a_bad_line_is_named_by_its_number(tokenizer, tmp_path, line: bytes, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(ConfigError, match=message):
        read_prompts(path, tokenizer, max_tokens=20)


def test_an_absent_or_empty_file_is_refused(tokenizer, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"gone.jsonl: No such file or directory; expected a readable JSONL file"):
        read_prompts(tmp_path / "gone.jsonl", tokenizer, max_tokens=20)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"empty.jsonl: got no prompt"):
        read_prompts(tmp_path / "empty.jsonl", tokenizer, max_tokens=20)
