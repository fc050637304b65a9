"""Settings: every key is read, every mistake names its key and its value."""

import hashlib
import socket
from pathlib import Path

import pytest
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import ConfigError
from paceline.learner.config import LearnerConfig, from_env, name_on
from paceline.policies.learn_schedule import LearnMode, LearnRules

NEEDED = {"PACELINE_TARGET": "llama", "PACELINE_TARGET_PATH": "/m/llama", "PACELINE_DRAFT": "/m/draft"}


def test_only_the_three_paths_are_needed() -> None:
    config = from_env(NEEDED)
    assert config == LearnerConfig(target="llama", target_path=Path("/m/llama"), initial_draft=Path("/m/draft"))
    assert (config.min_new_traces, config.window_traces, config.passes, config.draft_steps) == (40, 200, 4, None)


def test_every_setting_comes_from_its_key() -> None:
    given = {
        "PACELINE_REDIS_URL": "redis://r:1/2",
        "PACELINE_SPECULATOR": "chat",
        "PACELINE_TARGET_VERSION": "7",
        "PACELINE_DATA_DIR": "/d",
        "PACELINE_MLFLOW_URI": "http://mlflow:5000",
        "PACELINE_LEARNER": "gpu-3",
        "PACELINE_TARGET_VERSIONS": "3, 5,7",
        "PACELINE_TARGET_MAX_AGE": "1",
        "PACELINE_TRACE_TTL_S": "900",
        "PACELINE_LEARN": "always",
        "PACELINE_REST_AFTER_ROUNDS": "9",
        "PACELINE_COOL_DOWN_S": "5.5",
        "PACELINE_MIN_NEW_TRACES": "5",
        "PACELINE_MAX_CLAIM": "6",
        "PACELINE_WINDOW_TRACES": "7",
        "PACELINE_PASSES": "2",
        "PACELINE_HOLDOUT_SHARE": "0.25",
        "PACELINE_MIN_HOLDOUT_REQUESTS": "3",
        "PACELINE_HOLDOUT_WINDOW": "9",
        "PACELINE_GATE_CONFIDENCE": "0.9",
        "PACELINE_DRAFT_STEPS": "4",
        "PACELINE_OBJECTIVE": "soft",
        "PACELINE_SEED": "11",
        "PACELINE_DEVICE": "cpu",
        "PACELINE_ROUND_INTERVAL_S": "1.5",
        "PACELINE_ROUND_LEASE_S": "60",
        "PACELINE_LONGEST_ROUND_S": "70.5",
        "PACELINE_KEPT_VERSIONS": "3",
    }
    assert from_env(NEEDED | given) == LearnerConfig(
        target="llama",
        target_path=Path("/m/llama"),
        initial_draft=Path("/m/draft"),
        redis_url="redis://r:1/2",
        buffer=BufferConfig(speculator="chat"),
        target_version="7",
        data_dir=Path("/d"),
        mlflow_uri="http://mlflow:5000",
        name="gpu-3",
        target_versions=("3", "5", "7"),
        target_max_age=1,
        trace_ttl_s=900.0,
        learn="always",
        rest_after_rounds=9,
        cool_down_s=5.5,
        min_new_traces=5,
        max_claim=6,
        window_traces=7,
        passes=2,
        holdout_share=0.25,
        min_holdout_requests=3,
        holdout_window=9,
        gate_confidence=0.9,
        draft_steps=4,
        objective="soft",
        seed=11,
        device="cpu",
        round_interval_s=1.5,
        round_lease_s=60.0,
        longest_round_s=70.5,
        kept_versions=3,
    )


def test_the_policies_are_given_what_was_set() -> None:
    given = {"PACELINE_LEARN": "never", "PACELINE_REST_AFTER_ROUNDS": "4", "PACELINE_COOL_DOWN_S": "7"}
    assert from_env(NEEDED | given).learn_rules == LearnRules(LearnMode.NEVER, flat_rounds=4, cool_down_s=7.0)
    assert from_env(NEEDED).learn_rules == LearnRules(LearnMode.DRIFT)
    aged = {"PACELINE_TARGET_VERSION": "41", "PACELINE_TARGET_MAX_AGE": "2"}
    assert from_env(NEEDED | aged).trained_target_versions == ("39", "40", "41")
    assert from_env(NEEDED).trained_target_versions == ("0",)


def test_ages_of_versions_that_are_no_numbers_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"AGE 1\): got no list of versions, expected one, since version 'june'"):
        from_env(NEEDED | {"PACELINE_TARGET_VERSION": "june", "PACELINE_TARGET_MAX_AGE": "1"})


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gpu-3", "learner-gpu-3"),
        ("GPU_3.example.org", "learner-GPU_3.example.org"),
        ("h" * 56, "learner-" + "h" * 56),
        ("h" * 57, "learner-" + "h" * 47 + "-" + hashlib.sha256(b"h" * 57).hexdigest()[:8]),
        ("a b/c", "learner-a-b-c-" + hashlib.sha256(b"a b/c").hexdigest()[:8]),
        ("größe", "learner-gr--e-" + hashlib.sha256("größe".encode()).hexdigest()[:8]),
        ("", "learner-"),
    ],
)
def test_a_learner_is_named_after_its_host(
    host: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    first, restarted = from_env(NEEDED), from_env(NEEDED)
    assert (first.name, restarted.name) == (name, name)
    assert len(name) <= 64
    assert LearnerConfig("t", tmp_path, tmp_path, name="mine").name == "mine"


def test_hosts_that_differ_in_what_a_name_cannot_hold_have_learners_of_different_names() -> None:
    hosts = ["a b", "a/b", "p" * 60 + "-1", "p" * 60 + "-2", "p" * 57, "p" * 58]
    assert len({name_on(host) for host in hosts}) == len(hosts)


def test_places_on_disk_and_in_celery_carry_the_speculator() -> None:
    config = from_env(NEEDED | {"PACELINE_SPECULATOR": "chat", "PACELINE_DATA_DIR": "/d"})
    assert config.versions_dir == Path("/d/versions/chat")
    assert config.checkpoints_dir == Path("/d/checkpoints/chat")
    assert config.queue == "paceline.learn.chat"
    assert config.tracking_uri == "sqlite:////d/mlflow.db"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("PACELINE_PASSES", "many", "PACELINE_PASSES: got 'many', expected an integer"),
        ("PACELINE_HOLDOUT_SHARE", "a lot", "PACELINE_HOLDOUT_SHARE: got 'a lot', expected a number"),
        ("PACELINE_ROUND_INTERVAL_S", "inf", "PACELINE_ROUND_INTERVAL_S: got inf, expected a finite number"),
        ("PACELINE_GATE_CONFIDENCE", "nan", "PACELINE_GATE_CONFIDENCE: got nan, expected a finite number"),
        ("PACELINE_KEPT_VERSIONS", "0", "kept_versions (PACELINE_KEPT_VERSIONS): got 0, expected at least 1"),
        ("PACELINE_PASSES", "0", "passes (PACELINE_PASSES): got 0, expected at least 1"),
        ("PACELINE_HOLDOUT_SHARE", "1", "holdout_share (PACELINE_HOLDOUT_SHARE): got 1.0, expected between 0 and 1"),
        ("PACELINE_ROUND_LEASE_S", "-3", "(PACELINE_ROUND_LEASE_S): got -3.0, expected more than 0 seconds"),
        ("PACELINE_OBJECTIVE", "magic", "objective (PACELINE_OBJECTIVE): got 'magic', expected one of"),
        (
            "PACELINE_LEARN",
            "often",
            "(PACELINE_LEARN): got 'often', expected one of ['drift', 'always', 'never']",
        ),
        ("PACELINE_REST_AFTER_ROUNDS", "0", "(PACELINE_REST_AFTER_ROUNDS): got 0, expected at least 1"),
        ("PACELINE_COOL_DOWN_S", "-1", "(PACELINE_COOL_DOWN_S): got -1.0, expected 0 seconds or more"),
        ("PACELINE_TRACE_TTL_S", "-1", "(PACELINE_TRACE_TTL_S): got -1.0, expected 0 seconds or more"),
        ("PACELINE_TARGET_MAX_AGE", "-1", "(PACELINE_TARGET_MAX_AGE): got -1, expected 0 versions or more"),
        ("PACELINE_TARGET_VERSIONS", "1,2", "PACELINE_TARGET_VERSIONS (PACELINE_TARGET_MAX_AGE 0): got 1,2, expected"),
        ("PACELINE_LEARNER", "a/b", "name (PACELINE_LEARNER): got 'a/b'"),
        ("PACELINE_SPECULATOR", "../up", "speculator (PACELINE_SPECULATOR): got '../up'"),
        ("PACELINE_MAX_CLAIM", "39", "(PACELINE_MAX_CLAIM): got 39, expected at least min_new_traces (40)"),
        ("PACELINE_MIN_HOLDOUT_REQUESTS", "49", "got 49, expected 2 to holdout_window (48)"),
        ("PACELINE_DRAFT", "", "PACELINE_DRAFT: got nothing"),
    ],
)
def test_a_wrong_value_is_refused_by_name(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_env(NEEDED | {key: value})
    assert said in str(refused.value)


def test_the_password_of_redis_is_not_shown() -> None:
    assert "hunter2" not in repr(from_env(NEEDED | {"PACELINE_REDIS_URL": "redis://u:hunter2@r:1/0"}))
