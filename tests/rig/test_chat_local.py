"""Streams of chat prompts over what this machine has: no network, no file of ours."""

import pytest
from paceline.buffer.errors import ConfigError
from paceline.rig.chat.streams import STREAMS, chat_prompts, chat_stream

LOCAL = ("explain", "summary", "json")


def test_there_are_eight_streams_and_an_unknown_one_is_refused(tmp_path) -> None:
    assert list(STREAMS) == ["code", "tools", "talk", "logic", "explain", "summary", "json", "languages"]
    with pytest.raises(ConfigError, match=r"chat stream: got 'songs', expected one of \['code', 'explain'"):
        chat_stream("songs", tmp_path, 1, seed=0)


@pytest.mark.parametrize("name", LOCAL)
def test_a_stream_is_200_different_prompts_in_the_order_of_its_seed(tmp_path, name: str) -> None:
    chats = chat_stream(name, tmp_path, 200, seed=1)
    assert {tuple(message["role"] for message in chat) for chat in chats} == {("user",)}
    assert len({chat[0]["content"] for chat in chats}) == 200
    assert chat_stream(name, tmp_path, 200, seed=1) == chats
    assert chat_stream(name, tmp_path, 50, seed=1) == chats[:50]
    assert chat_stream(name, tmp_path, 200, seed=2) != chats
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


def test_prompts_are_chats_in_a_models_template_named_after_their_stream(tmp_path) -> None:
    chats = chat_stream("json", tmp_path, 3, seed=0)
    prompts = chat_prompts("json", tmp_path, 3, 0, template=lambda chat: [len(chat[0]["content"]), 7])
    assert [(prompt.request_id, prompt.domain) for prompt in prompts] == [(f"json-000{n}", "json") for n in range(3)]
    assert [prompt.input_ids for prompt in prompts] == [(len(chat[0]["content"]), 7) for chat in chats]
