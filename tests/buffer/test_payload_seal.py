"""Traces encrypted before Redis has them: nothing of one is in its files, and only the key's holders read any."""

import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import DecodeError, PayloadKeyUnusable
from paceline.buffer.finding import Level
from paceline.buffer.redis_client import connect
from paceline.buffer.settings.sources import read_settings
from paceline.buffer.stream import redis_payloads
from paceline.buffer.stream.payload_seal import SEALED, PayloadSeal
from paceline.buffer.stream.redis_stream import RedisTraceBuffer
from paceline.buffer.stream.trace_codec import encode_trace
from paceline.dashboards.doctor.board_side import examine_board
from paceline.learner.app import run_worker
from paceline.learner.config import LearnerConfig

OPEN = BufferConfig()


@pytest.fixture
def key_file(tmp_path):
    return new_key(tmp_path / "key")


def new_key(file):
    file.write_text(secrets.token_hex(32) + "\n")
    return file


def with_key(file):
    return replace(OPEN, payload_key_file=str(file))


def key_levels(url, file):
    """What doctor finds of the key."""
    environ = {"PACELINE_REDIS_URL": url} | ({"PACELINE_PAYLOAD_KEY_FILE": str(file)} if file else {})
    findings = examine_board(read_settings(environ), None, speculator=None, supported=(), aliases=None)
    return [one.level for one in findings if one.topic == "key"]


def files_of(server):
    return b"".join(file.read_bytes() for file in Path(server.folder).rglob("*") if file.is_file())


@pytest.mark.guarantee("payloads-encrypted")
@pytest.mark.parametrize("apart_bytes", [1, 64 << 10], ids=["apart", "inside"])
def test_nothing_of_a_trace_is_in_redis_files_and_readers_have_it_back(
    own_redis, make_trace, key_file, monkeypatch, apart_bytes
):
    monkeypatch.setattr(redis_payloads, "APART_BYTES", apart_bytes)
    shown, hidden = (make_trace(n, request_id=f"planted-{n}-{secrets.token_hex(16)}") for n in (0, 1))
    with connect(own_redis.url) as client:
        RedisTraceBuffer(client, OPEN).append([shown])
        sealed = RedisTraceBuffer(client, with_key(key_file))
        sealed.append([hidden])
        written = files_of(own_redis)
        assert encode_trace(shown) in written  # so what is looked for would be found
        wire = encode_trace(hidden)
        assert not any(wire[at : at + 16] in written for at in range(len(wire) - 16))
        assert hidden.request_id.encode() not in written
        assert SEALED in written
        found = [entry.trace for entry in sealed.claim("a learner", 9)]
        assert [trace.request_id for trace in found] == [shown.request_id, hidden.request_id]
        assert encode_trace(found[1]) == encode_trace(hidden)
        assert [entry.trace.request_id for entry in sealed.replay(9)] == [trace.request_id for trace in found]


@pytest.mark.guarantee("payloads-encrypted")
def test_a_trace_of_another_key_is_a_dead_letter_with_its_reason(redis_client, make_trace, key_file, tmp_path):
    server = RedisTraceBuffer(redis_client, with_key(key_file))
    without = RedisTraceBuffer(redis_client, OPEN)
    other = RedisTraceBuffer(redis_client, with_key(new_key(tmp_path / "other")))
    for number, reader in enumerate((without, other)):
        server.append([make_trace(number)])
        assert reader.claim("one", 1) == []
    counts = without.counts()
    assert (counts.delivered, counts.dead_lettered, counts.pending) == (2, 2, 0)
    (first, raw), (second, _) = without.dead_letters(9)
    assert first == "trace: got one that is encrypted, expected its key in PACELINE_PAYLOAD_KEY_FILE"
    assert second.startswith("trace: got one encrypted with another key, or changed, expected that of")
    assert raw.startswith(SEALED)


@pytest.mark.parametrize("cut", [2, 10, 20, -1])
def test_bytes_that_were_changed_are_refused(key_file, cut):
    seal = PayloadSeal(str(key_file))
    raw = seal.seal(b"a payload of some length")
    assert seal.open(raw) == b"a payload of some length"
    assert seal.seal(b"the same") != seal.seal(b"the same")
    with pytest.raises(DecodeError, match="or changed"):
        seal.open(raw[:cut])


@pytest.mark.guarantee("payloads-encrypted")
def test_a_learner_that_cannot_read_what_is_there_does_not_start(redis_url, redis_client, make_trace, key_file):
    RedisTraceBuffer(redis_client, with_key(key_file)).append([make_trace(0)])
    nowhere = Path("nowhere")
    config = LearnerConfig(target_path=nowhere, initial_draft="nowhere", redis_url=redis_url)
    with pytest.raises(PayloadKeyUnusable, match="got one that is encrypted, expected its key in PACELINE_PAYLOAD_KEY"):
        run_worker(config, beat=False)
    with pytest.raises(PayloadKeyUnusable, match="another key"):
        run_worker(replace(config, buffer=with_key(new_key(key_file.with_name("other")))), beat=False)
    RedisTraceBuffer(redis_client, with_key(key_file)).require_key()
    assert (key_levels(redis_url, key_file), key_levels(redis_url, None)) == ([Level.OK], [Level.WRONG])
    assert RedisTraceBuffer(redis_client, OPEN).counts().pending == 1


@pytest.mark.parametrize("text", ["", "0123", "g" * 64, "ä" * 64])
def test_what_is_no_key_is_refused_without_being_shown(redis_client, make_trace, tmp_path, text):
    file = tmp_path / "key"
    file.write_text(text, encoding="utf-8")
    buffer = RedisTraceBuffer(redis_client, with_key(file))
    with pytest.raises(
        PayloadKeyUnusable, match=r"PACELINE_PAYLOAD_KEY_FILE: got .*expected a file of 64 hexadec"
    ) as told:
        buffer.append([make_trace(0)])
    assert not text or text not in str(told.value)
    new_key(file)
    buffer.append([make_trace(0)])  # once it is mended


def test_the_key_is_in_no_setting(key_file):
    settings = read_settings({"PACELINE_PAYLOAD_KEY_FILE": str(key_file)})
    assert settings.value("PAYLOAD_KEY_FILE") == str(key_file)
    seal = PayloadSeal(str(key_file))
    seal.require()
    assert key_file.read_text().strip() not in repr(vars(seal)) + repr(with_key(key_file))
