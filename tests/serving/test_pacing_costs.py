"""`paceline pacing-costs`: what it starts, what it takes from a sweep, and what it writes."""

import pytest
from paceline.buffer.board.member_status import PacingSaid
from paceline.buffer.errors import ConfigError
from paceline.buffer.settings.sources import read_settings
from paceline.serving.launch import pacing_costs
from paceline.serving.launch.pacing_costs import MeasuredCosts, sweep_env, table_of, without_speculation
from paceline.serving.pacing import costs_file

REPORTED = {"1": {"0": 10.0, "1": 12.0}, "3": {"0": 20.0}, "4": {"0": 16.0004, "1": 24.0, "2": 30.0}}


def test_the_server_sweeps_under_a_name_of_its_own_with_all_else_as_it_was_set():
    given = {
        "PATH": "/bin",
        "PACELINE_CATCH_UP_BYTES": "5",
        "PACELINE_SPECULATOR": "mine",
        "PACELINE_CONFIG": "/dev/null",
    }
    assert sweep_env(read_settings(given), given, "s") == {
        "PATH": "/bin",
        "PACELINE_CATCH_UP_BYTES": "5",
        "PACELINE_CONFIG": "/dev/null",
        "PACELINE_REDIS_URL": "redis://127.0.0.1:6379/0",
        "PACELINE_SPECULATOR": "s",
        "PACELINE_REPLICA": "sweeping",
        "PACELINE_PACING": "sweep",
        "PACELINE_SAMPLE_RATE": "0",
    }
    elsewhere = given | {"PACELINE_REDIS_URL": "redis://h/2"}
    assert sweep_env(read_settings(elsewhere), elsewhere, "s")["PACELINE_REDIS_URL"] == "redis://h/2"


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        ("--model-path m --speculative-algorithm EAGLE3 --tp-size 2", "--model-path m --tp-size 2"),
        ("--speculative-num-steps=3 --device cpu", "--device cpu"),
        ("--model-path m --speculative-adaptive", "--model-path m"),
        ("", ""),
    ],
)
def test_a_server_without_speculation_has_every_other_flag(flags, left):
    assert without_speculation(flags.split()) == left.split()


def test_the_table_has_the_batch_sizes_and_lengths_that_were_asked_for():
    assert table_of(REPORTED, [4, 1], 1) == {4: [16.0004, 24.0], 1: [10.0, 12.0]}


@pytest.mark.parametrize(("batch", "missing"), [(3, "1"), (8, "0, 1")])
def test_a_batch_size_that_never_ran_at_a_length_is_named_with_what_may_be_the_cause(batch, missing):
    said = (
        f"--batch {batch}: got no step of so many requests with {missing} drafts, expected some; the server runs fewer"
    )
    with pytest.raises(ConfigError, match=said):
        table_of(REPORTED, [1, batch], 1)


def test_the_file_is_what_the_setting_reads(tmp_path):
    file = tmp_path / "costs.json"
    file.write_text(MeasuredCosts(table_of(REPORTED, [1, 4], 1), {1: 8.0}).text())
    table = costs_file.table_of(costs_file.read_costs(str(file)), str(file))
    assert [table.cost_ms(batch, k) for batch, k in ((1, 0), (1, 1), (4, 0), (4, 1), (2, 0))] == [10, 12, 16, 24, 12]


def test_the_costs_are_said_by_batch_size_with_what_the_draft_costs_that_drafts_nothing():
    assert list(MeasuredCosts({1: [10.0, 12.0], 4: [16.0, 24.0]}, {4: 12.8}).lines()) == [
        "batch 1: 0: 10.0, 1: 12.0 ms",
        "batch 4: 0: 16.0, 1: 24.0 ms",
        "batch 4: 12.8 ms without speculation; 0 drafts take 1.250 of that",
    ]


@pytest.mark.parametrize(
    ("pacing", "got"),
    [
        (PacingSaid(policy="off", reason="the server runs without --speculative-adaptive"), "the server runs without"),
        (PacingSaid(), "no pacing on this server"),
        (PacingSaid(policy="sweep", reason="ValueError: odd"), "ValueError: odd"),
    ],
)
def test_a_server_that_does_not_sweep_is_not_measured(pacing, got):
    with pytest.raises(ConfigError, match=f"pacing: got {got}.*, expected flags with which a server drafts and paces"):
        pacing_costs._require_sweep(pacing)
