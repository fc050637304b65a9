"""The guard: every alarm has its inputs, its figures and its action, and nothing else raises it."""

from dataclasses import replace

import pytest
from paceline.policies.acceptance import Tally
from paceline.policies.guard import Action, Alarm, AlarmName, GuardInput, GuardLimits, alarms
from paceline.policies.verdict_words import alarm_sentence

HEALTHY = GuardInput(
    can_roll_back=True,
    served=Tally(900, 1000),
    served_before=Tally(950, 1000),
    proposed_drafts=5000,
    most_proposed=400,
    committed_tokens=2000,
    most_committed=150,
    served_compared=Tally(450, 500),
    replayed=Tally(455, 500),
    engine_rounds=1000,
    captured_rounds=990,
    published_sha256="a" * 64,
    loaded_sha256="a" * 64,
    tokens_per_s=150.0,
    plain_tokens_per_s=100.0,
    goodput_steps=500,
)

SICK = [
    ({"served": Tally(20, 1000)}, AlarmName.SILENT_DEATH, Action.ROLL_BACK, "1.020 over 1000 rounds, 1.950 before"),
    ({"most_proposed": 4700}, AlarmName.DEGENERATE_DRAFT, Action.ROLL_BACK, "94% of 5000 drafts are one token, 8% of"),
    (
        {"tokens_per_s": 97.0},
        AlarmName.SLOWER_THAN_PLAIN,
        Action.SPECULATION_OFF,
        "97.0 tokens/s with speculation, 100",
    ),
    (
        {"loaded_sha256": "b" * 64},
        AlarmName.SWAP_WITHOUT_EFFECT,
        Action.PAUSE_LEARNING,
        "bbbbbbbbbbbb, published were a",
    ),
    ({"replayed": Tally(470, 500)}, AlarmName.CALIBRATION_GAP, Action.PAUSE_LEARNING, "served 1.900, replayed 1.940"),
    ({"captured_rounds": 0}, AlarmName.HOOK_SILENT, Action.TELL, "1000 rounds verified, none captured"),
]


def test_a_healthy_replica_and_one_of_which_nothing_was_read_raise_no_alarm() -> None:
    assert alarms(HEALTHY) == ()
    assert alarms(GuardInput()) == ()


@pytest.mark.parametrize(("sick", "name", "action", "figures"), SICK)
def test_each_sickness_raises_its_alarm_alone_with_figures(
    sick: dict[str, object], name: AlarmName, action: Action, figures: str
) -> None:
    (alarm,) = alarms(replace(HEALTHY, **sick))
    assert (alarm.name, alarm.action) == (name, action)
    assert figures in alarm_sentence(alarm.name, alarm.figures)


@pytest.mark.parametrize(
    "excused",
    [
        {"served": Tally(2, 199)},  # too few rounds
        {"served": Tally(20, 1000), "served_before": Tally(100, 1000)},  # was never alive
        {"most_proposed": 4700, "most_committed": 1500},  # the text repeats itself too
        {"proposed_drafts": 150, "most_proposed": 150},
        {"tokens_per_s": 98.5},  # within the margin
        {"tokens_per_s": 50.0, "goodput_steps": 199},
        {"loaded_sha256": ""},  # not read
        {"replayed": Tally(459, 500)},  # within the limit
        {"replayed": Tally(170, 199)},
        {"engine_rounds": 199, "captured_rounds": 0},
        {"captured_rounds": 1},
    ],
)
def test_too_few_rounds_and_margins_excuse(excused: dict[str, object]) -> None:
    assert alarms(replace(HEALTHY, **excused)) == ()


def test_without_a_version_to_return_to_a_dead_draft_turns_speculation_off() -> None:
    (alarm,) = alarms(replace(HEALTHY, served=Tally(0, 1000), can_roll_back=False))
    assert alarm.action is Action.SPECULATION_OFF


@pytest.mark.parametrize(
    ("is_same_draft", "can_roll_back", "action"),
    [
        (True, True, Action.TELL),  # the target's doing
        (True, False, Action.TELL),
        (False, True, Action.ROLL_BACK),  # the draft is new, too
        (False, False, Action.SPECULATION_OFF),
    ],
)
def test_a_fall_with_the_targets_move_is_said_to_be_one_and_puts_out_new_drafts_alone(
    is_same_draft: bool, can_roll_back: bool, action: Action
) -> None:
    dead = replace(HEALTHY, served=Tally(0, 1000), can_roll_back=can_roll_back)
    (plain,) = alarms(dead)
    (alarm,) = alarms(replace(dead, target_move="from 7 to 8", is_same_draft=is_same_draft))
    assert alarm == Alarm(AlarmName.SILENT_DEATH, {**plain.figures, "target_move": "from 7 to 8"}, action)
    said = alarm_sentence(plain.name, plain.figures)
    assert alarm_sentence(alarm.name, alarm.figures) == f"{said}; the target moved from 7 to 8 meanwhile"


def test_several_sicknesses_are_told_gravest_first() -> None:
    everything = {key: value for sick, *_ in SICK for key, value in sick.items()}
    # Readers and learners raise these, of no interval.
    others = {
        *(AlarmName.MEMBER_SILENT, AlarmName.LEARNER_LEFT, AlarmName.LEARNER_STALLED),
        *(AlarmName.NAME_TAKEN, AlarmName.DRAFTS_APART, AlarmName.WEIGHTS_GONE),
    }
    expected = [name for name in AlarmName if name not in others]
    assert [alarm.name for alarm in alarms(replace(HEALTHY, **everything))] == expected


def test_a_served_length_below_replay_is_as_wrong_as_one_above() -> None:
    (alarm,) = alarms(replace(HEALTHY, replayed=Tally(430, 500)))
    assert (alarm.name, alarm.action) == (AlarmName.CALIBRATION_GAP, Action.PAUSE_LEARNING)
    assert alarm.figures == pytest.approx({"served": 1.9, "replayed": 1.86, "rounds": 500})


def test_limits_can_be_set() -> None:
    low = replace(HEALTHY, served=Tally(8, 100), served_before=Tally(90, 100))
    assert alarms(low) == ()
    assert alarms(low, GuardLimits(min_rounds=100, floor_accept_length=1.1))[0].name is AlarmName.SILENT_DEATH
