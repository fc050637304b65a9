"""A Redis behind TLS that admits ACL users only: the server is verified, and the password is shown nowhere."""

import logging
import traceback
from urllib.parse import quote, urlsplit

import pytest
import redis
from fleet import version
from paceline.buffer.board.member_status import MemberStatus
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_operator import OperatorAuth
from paceline.buffer.board.version import VersionState
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, ConfigError
from paceline.buffer.plain_text import masked
from paceline.buffer.redis_client import client_for, connect, tls_settings
from paceline.buffer.stream.redis_stream import RedisTraceBuffer

CONFIG = BufferConfig()
PASSWORD = "s3cret/päss@w?rd#1:x"


def assert_hidden(text: str) -> None:
    for form in (PASSWORD, quote(PASSWORD, ""), "s3cret", "w?rd"):
        assert form not in text


@pytest.mark.guarantee("redis-tls")
def test_everything_works_behind_tls_for_a_user_who_may_touch_one_speculator(secure_redis, make_trace):
    with connect(secure_redis.url, secure_redis.ca, timeout_s=30.0) as client:
        buffer, board = RedisTraceBuffer(client, CONFIG), RedisVersionBoard(client, CONFIG)
        buffer.append([make_trace(0), make_trace(1)])
        claimed = buffer.claim("a", 2)
        assert [entry.trace.trace_id for entry in claimed] == ["trace-0", "trace-1"]
        assert buffer.ack([claimed[0].entry_id], "trained") == 1
        assert [entry.trace.trace_id for entry in buffer.replay(9, acked_only=True)] == ["trace-0"]
        assert (buffer.counts().delivered, buffer.dead_letters(9)) == (2, [])
        board.register(version(board.next_number()), "learner", "trained")
        board.move(0, VersionState.LIVE, "learner", "won")
        board.beat("replica", MemberStatus(draft_version=0), 60.0)
        assert (board.read().live, dict(board.heartbeats())) == (0, {"replica": MemberStatus(draft_version=0)})
        assert board.events(board.read().last_event_id, wait_s=0.01) == []
        with board.lease("round", 60.0) as lease:
            assert lease.is_held()
        auth = OperatorAuth(client, CONFIG)
        auth.set_token("a token of some length", None, "operator:ann", "why")
        assert len(auth.history()) == 1


@pytest.mark.guarantee("redis-acl")
def test_that_user_may_touch_no_other_speculator_and_no_setting_of_redis(secure_redis):
    with connect(secure_redis.url, secure_redis.ca, timeout_s=30.0) as client:
        with pytest.raises(BufferUnavailable, match="check user and password in PACELINE_REDIS_URL and the user's ACL"):
            RedisVersionBoard(client, BufferConfig(speculator="other")).read()
        for command in (["CONFIG", "GET", "*"], ["FLUSHALL"], ["KEYS", "*"], ["ACL", "LIST"], ["SHUTDOWN"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command)


def test_the_certificates_of_the_system_are_the_default(secure_redis, monkeypatch):
    with pytest.raises(BufferUnavailable, match="name the CA's file in PACELINE_REDIS_CA"):
        connect(secure_redis.url)
    monkeypatch.setenv("SSL_CERT_FILE", str(secure_redis.ca))  # where OpenSSL looks for those of the system
    connect(secure_redis.url).close()


@pytest.mark.guarantee("redis-tls")
def test_a_certificate_of_another_ca_is_refused(secure_redis):
    with pytest.raises(BufferUnavailable, match=r"CERTIFICATE_VERIFY_FAILED.*PACELINE_REDIS_CA") as caught:
        connect(secure_redis.url, secure_redis.other_ca)
    assert f"Redis at rediss://localhost:{urlsplit(secure_redis.url).port}/0: " in str(caught.value)


@pytest.mark.guarantee("redis-tls")
def test_a_certificate_for_another_name_is_refused(secure_redis):
    with pytest.raises(BufferUnavailable, match="the host in PACELINE_REDIS_URL as the certificate does"):
        connect(secure_redis.at("127.0.0.1"), secure_redis.ca)


@pytest.mark.guarantee("redis-tls")
@pytest.mark.parametrize(
    "option",
    ["ssl_cert_reqs=none", "ssl_check_hostname=False", "ssl_ca_certs=/x", "ssl_exclude_verify_flags=", "ssl_x"],
)
def test_no_option_of_a_url_turns_verification_off(secure_redis, option):
    for make in (client_for, connect, tls_settings):
        with pytest.raises(ConfigError, match="got an ssl_ option, expected none: certificates are always verified"):
            make(f"{secure_redis.url}?db=0&{option}")


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ("timeout=3", "'timeout'"),
        ("db=1", "'db'"),
        ("socket_timeout=30&retry=5", "'retry', 'socket_timeout'"),
        ("decode_responses=1", "'decode_responses'"),
        ("flag", "'flag'"),
    ],
)
def test_an_option_of_a_url_is_a_config_error_that_names_it(options, got):
    for scheme in ("redis", "rediss"):
        with pytest.raises(ConfigError, match=f"PACELINE_REDIS_URL: got option {got} .* expected none; write redis://"):
            client_for(f"{scheme}://:s3cret@host:1/0?{options}")


def test_a_socket_takes_its_database_as_an_option_and_nothing_else():
    assert client_for("unix:///run/redis.sock?db=3").get_connection_kwargs()["db"] == 3
    with pytest.raises(ConfigError, match=r"got option 'DB' .* expected db, password, username"):
        client_for("unix:///run/redis.sock?DB=3")


def test_what_may_be_the_rest_of_a_password_is_not_quoted_as_an_option():
    for url in ("redis://me:12?s3cret@host:1/0", "redis://me:12?x#s3cret@host", "redis://:abc?s3cret"):
        with pytest.raises(ConfigError, match=r"write / . # @ and : of a password as") as caught:
            client_for(url)
        assert_hidden(str(caught.value))


def test_a_port_without_tls_is_reported(secure_redis):
    with pytest.raises(BufferUnavailable, match="give PACELINE_REDIS_URL the TLS port of Redis"):
        connect(secure_redis.plain_url.replace("redis://", "rediss://", 1))


def test_a_ca_with_an_address_without_tls_is_a_config_error(secure_redis):
    with pytest.raises(ConfigError, match="got redis:// with PACELINE_REDIS_CA set, expected rediss:// for TLS"):
        connect(secure_redis.plain_url, secure_redis.ca)
    connect(secure_redis.plain_url).close()


@pytest.mark.parametrize("content", [None, "", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_ca_file_that_holds_no_certificate_is_a_config_error(tmp_path, content):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"PACELINE_REDIS_CA: got .*ca.pem .*, expected a file of PEM"):
        client_for("rediss://:s3cret@localhost/0", str(file))


def test_celery_reaches_the_same_redis_with_the_same_settings_and_refuses_the_same(secure_redis):
    from kombu import Connection

    # The user may touch no queue: a broker that got in is told so; one that distrusts the server does not get in.
    with Connection(secure_redis.url, ssl=tls_settings(secure_redis.url, secure_redis.ca)) as broker:
        client = broker.channel().client
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("anything")
    with (
        Connection(secure_redis.url, ssl=tls_settings(secure_redis.url, secure_redis.other_ca)) as broker,
        pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        broker.channel()


def test_the_command_line_reaches_it_too(secure_redis):
    from paceline.cli import app
    from typer.testing import CliRunner

    env = {"PACELINE_REDIS_URL": secure_redis.url, "PACELINE_OPERATOR_TOKEN": "a token of some length"}
    with connect(secure_redis.url, secure_redis.ca, timeout_s=30.0) as client:
        RedisVersionBoard(client, CONFIG).register(version(0), "learner", "trained")
    commands = (["token", "set"], ["promote", "0", "--unchecked"], ["versions"], ["audit"])
    done = [CliRunner().invoke(app, command, env=env) for command in commands]
    assert [result.exit_code for result in done] == [0, 0, 0, 0]
    assert "version 0 live" in done[-1].output
    assert_hidden("".join(result.output for result in done))


@pytest.mark.guarantee("password-hidden")
@pytest.mark.parametrize("fault", ["password", "user", "certificate", "gone", "url", "permission"])
def test_the_password_stands_in_no_error_no_log_and_no_repr(secure_redis, own_redis, caplog, fault):
    caplog.set_level(logging.DEBUG)
    url, ca = secure_redis.url, secure_redis.ca
    if fault == "password":
        url = url.replace("s3cret", "wrongs3cret")
    if fault == "user":
        url = url.replace("courier", "nobody")
    if fault == "url":
        url = f"rediss://courier:{PASSWORD}@localhost:{urlsplit(url).port}/0"
    if fault == "certificate":
        ca = secure_redis.other_ca
    if fault == "gone":
        own_redis.stop()
    with pytest.raises((BufferUnavailable, ConfigError)) as caught:
        RedisVersionBoard(connect(url, ca), BufferConfig(speculator="other")).read()
    shown = "".join(traceback.format_exception(caught.value)) + str(caught.value) + repr(caught.value)
    assert_hidden(shown + caplog.text)


@pytest.mark.guarantee("password-hidden")
def test_a_client_shows_neither_user_nor_password(secure_redis):
    with connect(secure_redis.url, secure_redis.ca, timeout_s=30.0) as client:
        pool = client.connection_pool
        connection = pool.get_connection()
        shown = [client, pool, connection, client.get_connection_kwargs(), pool.connection_kwargs]
        pool.release(connection)
        for thing in shown:
            assert_hidden(repr(thing) + str(thing))
            assert "courier" not in repr(thing)


def test_configurations_do_not_show_the_password():
    from paceline.learner.config import from_env as learner_from_env
    from paceline.serving.config import from_env as serving_from_env

    given = {"PACELINE_TARGET": "t", "PACELINE_TARGET_PATH": "/t", "PACELINE_DRAFT": "/d"}
    given["PACELINE_REDIS_URL"] = f"rediss://:{quote(PASSWORD, '')}@host/0"
    for config in (serving_from_env(given), learner_from_env(given)):
        assert config.redis_url == given["PACELINE_REDIS_URL"]
        assert_hidden(repr(config) + str(config))


@pytest.mark.guarantee("password-hidden")
@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}@host:6379/0",
        f"redis://me:{PASSWORD}@host:6379/0",
        "redis://:s3cret",
        "redis://me:s3cret/x@host",
        "redis://me:s3cret?x@host",
        "redis://me:s3cret#x@host",
        "redis://s3cret@host",
        "redis://host/0?password=s3cret",
        "redis://host/0?password=s3@s3cret",
        ":s3cret@host",
        "s3cret",
        "//:s3cret@host",
    ],
)
def test_no_way_to_write_a_url_makes_its_masked_form_show_the_password(url):
    assert_hidden(masked(url))
