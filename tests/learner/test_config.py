"""Settings: every key is read, every mistake names its key and its value."""

import hashlib
import socket
from pathlib import Path
from typing import get_args

import pytest
from paceline.buffer.errors import ConfigError
from paceline.buffer.settings.table import BY_NAME
from paceline.learner.config import LearnerConfig, from_env, name_on
from paceline.learner.delivery.tracking.lookup import may_be_asked
from paceline.learner.recovery import plan_of
from paceline.learner.state.checkpoint import LearnerNotes
from paceline.learner.training.plan import TrainingPlan
from paceline.policies.learn_schedule import REMEMBERED_REQUESTS, LearnMode, LearnRules
from paceline.policies.objectives.names import Objective
from paceline.serving.config import ServingConfig
from sqlalchemy import create_engine

NEEDED = {"PACELINE_TARGET_PATH": "/m/llama", "PACELINE_DRAFT": "/m/draft"}


def test_only_the_two_paths_are_needed_and_the_target_is_named_as_a_server_names_it() -> None:
    config = from_env(NEEDED)
    assert config == LearnerConfig(target_path=Path("/m/llama"), initial_draft=Path("/m/draft"))
    assert config.target == ServingConfig().target == "target"
    assert config.max_wait_s == 600.0
    assert (config.min_new_traces, config.replay_traces, config.passes, config.draft_steps) == (40, 200, 4, None)


def test_the_policies_are_given_what_was_set() -> None:
    given = {"PACELINE_LEARN": "never", "PACELINE_REST_AFTER_ROUNDS": "4", "PACELINE_COOL_DOWN_S": "7"}
    given |= {"PACELINE_REST_AFTER_REQUESTS": "99"}
    assert from_env(NEEDED | given).learn_rules == LearnRules(
        mode=LearnMode.NEVER, flat_rounds=4, flat_requests=99, cool_down_s=7.0
    )
    assert from_env(NEEDED).learn_rules == LearnRules(mode=LearnMode.DRIFT)
    most = {"PACELINE_REST_AFTER_REQUESTS": str(REMEMBERED_REQUESTS)}
    assert from_env(NEEDED | most).learn_rules.flat_requests == REMEMBERED_REQUESTS
    with pytest.raises(ConfigError, match="PACELINE_REST_AFTER_REQUESTS"):
        from_env(NEEDED | {"PACELINE_REST_AFTER_REQUESTS": str(REMEMBERED_REQUESTS + 1)})
    aged = {"PACELINE_TARGET_VERSION": "41", "PACELINE_TARGET_MAX_AGE": "2"}
    assert from_env(NEEDED | aged).target_history().trained == ("39", "40", "41")
    assert from_env(NEEDED | {"PACELINE_TARGET_VERSION": "0"}).target_history().trained == ("0",)


@pytest.mark.parametrize("given", [{}, {"PACELINE_TARGET_VERSION": "follow"}, {"PACELINE_TARGET_VERSION": ""}])
@pytest.mark.parametrize(("age", "trained"), [("", "345"), ("0", "5"), ("1", "45")])
def test_without_a_version_the_learner_follows_the_target_and_two_versions_before_it(given, age, trained) -> None:
    config = from_env(NEEDED | given | {"PACELINE_TARGET_MAX_AGE": age})
    history = config.target_history()
    assert (config.follows_target, history.newest) == (True, None)
    history.observe(((1, place), version) for place, version in enumerate("12345"))
    assert history.trained == tuple(trained)


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
    assert LearnerConfig(target_path=tmp_path, initial_draft=tmp_path, name="mine").name == "mine"


def test_hosts_that_differ_in_what_a_name_cannot_hold_have_learners_of_different_names() -> None:
    hosts = ["a b", "a/b", "p" * 60 + "-1", "p" * 60 + "-2", "p" * 57, "p" * 58]
    assert len({name_on(host) for host in hosts}) == len(hosts)


def test_places_on_disk_and_in_celery_carry_the_speculator() -> None:
    config = from_env(NEEDED | {"PACELINE_SPECULATOR": "chat", "PACELINE_DATA_DIR": "/d"})
    assert config.versions_dir == Path("/d/versions/chat")
    assert config.checkpoints_dir == Path("/d/checkpoints/chat")
    assert config.queue == "paceline.learn.chat"
    assert config.tracking_uri == "sqlite:////d/mlflow.db"


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%20b", "a b", "ä"])
def test_the_database_is_in_the_data_folder_whatever_its_name_is(tmp_path, name) -> None:
    (tmp_path / name).mkdir()
    uri = from_env(NEEDED | {"PACELINE_DATA_DIR": str(tmp_path / name)}).tracking_uri
    assert not may_be_asked(uri)
    with create_engine(uri).connect():
        assert [path.name for path in (tmp_path / name).iterdir()] == ["mlflow.db"]
    assert may_be_asked(uri)


def test_a_wrong_value_in_code_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"PACELINE_HOLDOUT_SHARE: got 1\.0, expected a finite number"):
        LearnerConfig(target_path=tmp_path, initial_draft=tmp_path, holdout_share=1.0)
    with pytest.raises(ConfigError, match="PACELINE_TARGET: got '', expected text"):
        LearnerConfig(target_path=tmp_path, initial_draft=tmp_path, target="")


def test_versions_of_the_target_must_end_with_its_own() -> None:
    with pytest.raises(ConfigError, match=r"PACELINE_TARGET_VERSIONS \(PACELINE_TARGET_MAX_AGE 0\): got 1,2, expected"):
        from_env(NEEDED | {"PACELINE_TARGET_VERSIONS": "1,2"})


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("value", [None, "", " "])
def test_what_a_learner_needs_is_asked_for(name: str, value: str | None) -> None:
    given = {other: text for other, text in NEEDED.items() if other != name}
    with pytest.raises(ConfigError) as refused:
        from_env(given if value is None else given | {name: value})
    assert str(refused.value) == f"{name}: got nothing, expected a value"


@pytest.mark.parametrize(("min_new", "claim"), [(40, 400), (1, 400), (400, 400), (1000, 1000)])
def test_the_largest_claim_follows_from_the_least(min_new: int, claim: int) -> None:
    assert from_env(NEEDED | {"PACELINE_MIN_NEW_TRACES": str(min_new)}).max_claim == claim


@pytest.mark.parametrize(("share", "traces", "remembered"), [("0.1", "200", 23), ("0.5", "7", 7), ("0.001", "200", 1)])
def test_held_out_traces_are_remembered_as_far_back_as_the_replay_buffer_goes(share, traces, remembered) -> None:
    given = {"PACELINE_HOLDOUT_SHARE": share, "PACELINE_REPLAY_TRACES": traces}
    assert from_env(NEEDED | given).remembered_held_out == remembered


@pytest.mark.parametrize(("confidence", "error"), [("0.95", 0.05), ("0.01", 0.99), ("1e-300", 1.0)])
def test_the_test_of_a_line_errs_as_often_as_the_gates_confidence_allows(confidence, error) -> None:
    rules = from_env(NEEDED | {"PACELINE_GATE_CONFIDENCE": confidence}).delivery_rules
    assert rules.test.error == pytest.approx(error)


def test_the_objectives_that_may_be_set_are_those_of_production() -> None:
    assert get_args(BY_NAME["OBJECTIVE"].kind) == tuple(map(str, Objective))


@pytest.mark.parametrize("objective", get_args(BY_NAME["OBJECTIVE"].kind))
def test_every_objective_that_may_be_set_can_be_trained_on(objective: str) -> None:
    assert TrainingPlan(objective=from_env(NEEDED | {"PACELINE_OBJECTIVE": objective}).objective).objective == objective


def test_a_learner_trains_by_its_settings() -> None:
    asked = {
        "PACELINE_DRAFT_STEPS": "5", "PACELINE_PASSES": "2", "PACELINE_OBJECTIVE": "matched",
        "PACELINE_BATCH_TOKENS": "99", "PACELINE_CONTEXT_WEIGHT": "0",
    }  # fmt: skip
    found = plan_of(from_env(NEEDED | asked), LearnerNotes())
    assert found == TrainingPlan(steps=5, passes=2, objective="matched", batch_tokens=99, context_weight=0.0)
    assert plan_of(from_env(NEEDED), LearnerNotes(draft_steps=4)) == TrainingPlan(steps=4)
