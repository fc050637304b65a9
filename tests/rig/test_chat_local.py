"""Streams of chat prompts over what this machine has: no network, no file of ours."""

import json

import pytest
from paceline.buffer.errors import ConfigError
from paceline.rig.chat.streams import STREAMS, chat_stream, write_jsonl

LOCAL = ("explain", "summary", "json")


def test_there_are_eight_streams_and_an_unknown_one_is_refused(tmp_path) -> None:
    assert list(STREAMS) == ["code", "tools", "talk", "logic", "explain", "summary", "json", "languages"]
    with pytest.raises(ConfigError, match=r"chat stream: got 'songs', expected one of \['code', 'explain'"):
        chat_stream("songs", tmp_path, 1, seed=0)


@pytest.mark.parametrize("name", LOCAL)
def test_a_stream_is_200_different_prompts_in_the_order_of_its_seed(tmp_path, name: str) -> None:
    prompts = chat_stream(name, tmp_path, 200, seed=1)
    assert [prompt.prompt_id for prompt in prompts] == [f"{name}-{number:04d}" for number in range(200)]
    assert {prompt.stream for prompt in prompts} == {name}
    assert {tuple(message["role"] for message in prompt.messages) for prompt in prompts} == {("user",)}
    assert len({prompt.messages[0]["content"] for prompt in prompts}) == 200
    assert chat_stream(name, tmp_path, 200, seed=1) == prompts
    assert chat_stream(name, tmp_path, 50, seed=1) == prompts[:50]
    assert chat_stream(name, tmp_path, 200, seed=2) != prompts
    assert list(tmp_path.iterdir()) == []


def test_more_than_there_are_is_refused_with_what_there_is(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"chat stream 'json': got \d{3} prompts, expected 99999; ask for fewer"):
        chat_stream("json", tmp_path, 99_999, seed=0)


def test_what_is_asked_is_what_this_machine_has(tmp_path) -> None:
    asked = {name: [chat[0]["content"] for chat in STREAMS[name](tmp_path)] for name in LOCAL}
    quote = "Explain what the Python function `shlex.quote(s)` does and show a short example."
    assert quote in asked["explain"]
    not_found = "Status code: 404\nReason: Not Found\nDescription: Nothing matches the given URI"
    ask = "Rewrite the following as JSON with the keys status_code, reason, description:\n\n"
    assert ask + not_found in asked["json"]
    packages = [text for text in asked["json"] if "\nName: pytest\nVersion: " in text]
    assert len(packages) == 1
    assert "the keys name, version, summary, requires_python, requires_dist:" in packages[0]
    lengths = {len(text.partition(":\n\n")[2]) for text in asked["summary"]}
    assert min(lengths) >= 300
    assert max(lengths) <= 900


def test_a_file_has_one_object_a_line_in_the_order_given(tmp_path) -> None:
    prompts = chat_stream("json", tmp_path, 3, seed=0)
    path = tmp_path / "own.jsonl"
    write_jsonl(path, prompts)
    write_jsonl(path, prompts)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows == [{"messages": list(prompt.messages), "domain": "json"} for prompt in prompts]
