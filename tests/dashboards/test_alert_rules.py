"""The alert rules under promtool: each fires where it should, with the words that it should, and is quiet beside that.

Series are one sample a minute, in promtool's notation: `5+10x20` is 5, and 10 more twenty times; `_` is no sample.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards/prometheus"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """`labels` and `summary` are those of the alert that `fired` raises at `at`; `quiet` raises none at any time."""

    fired: Series
    quiet: Series
    summary: str
    labels: dict[str, str]
    at: str = "20m"


S, R, L = 'speculator="s"', 'speculator="s",member="replica:a"', 'speculator="s",member="learner:b"'
OF_S, OF_R, OF_L = (dict(re.findall(r'(\w+)="([^"]*)"', text)) for text in (S, R, L))


def decoding(drafted: int, plain: str) -> Series:
    """Steps of batch 8 that take 1 s a minute: `drafted` tokens each minute; and plain steps of 10 tokens a second."""
    at, without = f'{R},batch="8",steps="3"', f'{R},batch="8",steps="0"'
    return {
        f"paceline_decode_step_tokens_total{{{at}}}": f"0+{drafted}x40",
        f"paceline_decode_step_seconds_sum{{{at}}}": "0+1x40",
        f"paceline_decode_step_tokens_total{{{without}}}": plain,
        f"paceline_decode_step_seconds_sum{{{without}}}": "5x40",
        f"paceline_decode_step_seconds_count{{{without}}}": "50x40",
    }


def serving(accepted: int, predicted: str = "3x40") -> Series:
    """The live draft 4, and an older one that serves nothing."""
    return {
        f'paceline_draft_verify_rounds_total{{{R},draft="4"}}': "0+10x40",
        f'paceline_draft_verify_accepted_total{{{R},draft="4"}}': f"0+{accepted}x40",
        f'paceline_draft_info{{{S},draft="4",state="live",parent="3",sha256="a"}}': "1x40",
        f'paceline_gate_predicted_accept_length{{{S},draft="4"}}': predicted,
    }


def traces(dropped: int, reason: str = "gap") -> Series:
    return {
        f"paceline_traces_captured_total{{{R}}}": "0+100x40",
        f'paceline_traces_total{{{R},fate="dropped",reason="{reason}"}}': f"0+{dropped}x40",
    }


def learner_working(work: str, rounds: str) -> Series:
    return {
        f'paceline_learner_phase_seconds_total{{{L},phase="train"}}': work,
        f'paceline_learner_phase_seconds_total{{{L},phase="idle"}}': "0+60x200",
        f'paceline_rounds_total{{{L},kind="learned",verdict="refuse"}}': rounds,
    }


def of(name: str, labels: str, values: str) -> Series:
    return {f"paceline_{name}{{{labels}}}": values}


DRAFT_OF_B = 'speculator="s",member="replica:b"'
APART = of("member_draft", R, "3x40") | of("member_draft", DRAFT_OF_B, "4x40")
SERVER, LEARNER = of("member_alive", R, "1x40"), of("member_alive", L, "1x40")

CASES = {
    "PacelineSlowerThanPlain": Case(
        fired=decoding(9, "50x40"),
        quiet=decoding(13, "50x40"),
        summary="s: drafting serves 0.90 times the tokens of plain decoding",
        labels=OF_S,
    ),
    "PacelineAcceptLengthBelowPredicted": Case(
        fired=serving(15),
        quiet=serving(18),
        summary="s: the live draft serves an accept length of 2.50, under 0.85 of what was predicted",
        labels=OF_S,
        at="30m",
    ),
    "PacelineTracesDropped": Case(
        fired=traces(2),
        quiet=traces(1) | traces(50, "no_rounds"),
        summary="s: 2% of the captured traces are lost before the buffer",
        labels=OF_S,
    ),
    "PacelineTracesTrimmedUnread": Case(
        fired=of("buffer_trimmed_total", L, "7x17 17x20"),
        quiet=of("buffer_trimmed_total", L, "7x40"),
        summary="s: 10 traces left the buffer unlearned",
        labels=OF_S,
    ),
    "PacelineTracesWaitUnread": Case(
        fired=of("buffer_oldest_pending_seconds", L, "0+60x40") | of("learner_resting", L, "0x40"),
        quiet=of("buffer_oldest_pending_seconds", L, "0+60x40") | of("learner_resting", L, "1x40"),
        summary="s: the oldest unread trace has waited for 20m 0s",
        labels=OF_S,
    ),
    "PacelineNoVerdict": Case(
        fired=learner_working("0+60x200", "0+1x60 60x140"),  # a round a minute, and then none in an hour of work
        quiet=learner_working("0+60x60 3600x140", "0+1x60 60x140"),  # none because there is nothing to do
        summary="s: learner:b has worked for 1h 0m 0s without a verdict",
        labels=OF_L,
        at="2h10m",
    ),
    "PacelineReplicasOnDifferentDrafts": Case(
        fired=APART,
        quiet=APART | of("canary_draft", S, "4x40"),
        summary="s: replicas draft with different versions, and there is no canary",
        labels=OF_S,
    ),
    "PacelineSwapRefused": Case(
        fired=of("swaps_total", f'{R},result="refused"', "0x15 1x30"),
        quiet=of("swaps_total", f'{R},result="refused"', "1x40") | of("swaps_total", f'{R},result="done"', "0+1x40"),
        summary="s: replica:a refused the weights of a version",
        labels=OF_R | {"result": "refused"},
    ),
    "PacelineAlarm": Case(
        fired=of("alarm", f'{R},name="hook_silent"', "1x40"),
        quiet=of("alarm", f'{R},name="member_silent"', "1x40"),
        summary="s: replica:a raises hook_silent",
        labels=OF_R | {"name": "hook_silent"},
    ),
    "PacelineCaptureOff": Case(
        fired=of("capture_on", R, "1x10 0x30"),
        quiet=of("capture_on", R, "1x40"),
        summary="s: replica:a serves and captures nothing",
        labels=OF_R,
    ),
    "PacelineMlflowOutOfDate": Case(
        fired=of("mlflow_pending_registrations", L, "2x40"),
        quiet=of("mlflow_pending_registrations", L, "0 0 1 2 0x40"),
        summary="s: 2 things wait for MLflow, which may name another draft live",
        labels=OF_S,
    ),
    "PacelineMemberSilent": Case(
        fired=of("board_timestamp_seconds", S, "1000+60x40") | of("member_last_seen_timestamp_seconds", R, "1060x40"),
        quiet=of("board_timestamp_seconds", S, "1000+60x40") | of("member_last_seen_timestamp_seconds", R, "998+60x40"),
        summary="s: nothing was heard of replica:a for 19m 0s",
        labels=OF_R,
    ),
    "PacelineNobodyServes": Case(
        fired=of("live_draft", S, "0x40") | LEARNER | of("member_alive", R, "1x5 0x40"),
        quiet=of("live_draft", S, "0x40") | SERVER,
        summary="s: a draft is live on the board, and no server is alive to draft with it",
        labels=OF_S,
    ),
    "PacelineNobodyLearns": Case(
        fired=SERVER | of("member_alive", L, "0x40"),
        quiet=SERVER | LEARNER,
        summary="s: servers are alive and no learner is",
        labels=OF_S,
    ),
    "PacelineCountersMissing": Case(
        fired=SERVER | of("committed_tokens_total", DRAFT_OF_B, "0x40"),
        quiet=SERVER | of("committed_tokens_total", R, "0x40"),
        summary="s: replica:a beats and sends no counters, so nothing is known of its speed",
        labels=OF_R,
    ),
    "PacelineBoardUnreadable": Case(
        fired=of("speculator_readable", S, "0x40"),
        quiet=of("speculator_readable", S, "1x40"),
        summary="s: the board cannot be read",
        labels=OF_S,
    ),
    "PacelineNoSpeculator": Case(
        fired={"paceline_up": "1x40"},
        quiet={"paceline_up": "0x40"},
        summary="Redis answers, and there is no speculator in it",
        labels={},
    ),
    "PacelineRedisDown": Case(
        fired={"paceline_up": "1x10 0x30"},
        quiet={"paceline_up": "1x40"},
        summary="the Redis of paceline does not answer the exporter",
        labels={},
    ),
    "PacelineExporterDown": Case(
        fired={'up{job="paceline"}': "1x10 0x30"},
        quiet={'up{job="paceline"}': "1x40"},
        summary="no exporter of paceline is scraped, so no other alert can fire",
        labels={"job": "paceline"},
    ),
}


def promtool() -> str:
    found = shutil.which("promtool")
    if not found:
        pytest.skip("no promtool on PATH: apt-get install prometheus")
    return found


def run_rules(folder: Path, name: str, series: Series, expected: dict[str, list[dict]]) -> None:
    """Have promtool compare the alerts called `name` at each time of `expected`."""
    tested = [{"eval_time": at, "alertname": name, "exp_alerts": alerts} for at, alerts in expected.items()]
    rows = [{"series": key, "values": values} for key, values in series.items()]
    document = {
        "rule_files": [str(RULES / "recording.yml"), str(RULES / "alerts.yml")],
        "evaluation_interval": "1m",
        "group_eval_order": ["paceline_readings", "paceline_symptoms", "paceline_silence"],
        "tests": [{"interval": "1m", "input_series": rows, "alert_rule_test": tested}],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = subprocess.run([promtool(), "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_no_fault() -> None:
    files = [RULES / name for name in ("recording.yml", "alerts.yml")]
    done = subprocess.run([promtool(), "check", "rules", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run([promtool(), "check", "config", RULES / "prometheus.yml"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(ALERTS)


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires(name: str, tmp_path: Path) -> None:
    case, rule = CASES[name], ALERTS[name]
    alert = {
        "exp_labels": case.labels | rule["labels"],
        "exp_annotations": {"summary": case.summary, "runbook": rule["annotations"]["runbook"]},
    }
    run_rules(tmp_path, name, case.fired, {case.at: [alert]})


@pytest.mark.parametrize("name", CASES)
def test_an_alert_is_quiet(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    run_rules(tmp_path, name, case.quiet, {f"{minute}m": [] for minute in range(1, 40)} | {case.at: []})


def test_speed_is_unknown_and_no_alert_where_no_plain_step_was_taken(tmp_path: Path) -> None:
    drafted = {key: values for key, values in decoding(1, "50x40").items() if 'steps="3"' in key}
    run_rules(tmp_path, "PacelineSlowerThanPlain", drafted, {"20m": []})


def test_a_learner_whose_usual_round_is_not_known_is_held_to_fifty_minutes(tmp_path: Path) -> None:
    series = learner_working("0+60x200", "0x200")
    labels = OF_L | ALERTS["PacelineNoVerdict"]["labels"]
    summary = "s: learner:b has worked for 53m 0s without a verdict"
    runbook = ALERTS["PacelineNoVerdict"]["annotations"]["runbook"]
    alert = {"exp_labels": labels, "exp_annotations": {"summary": summary, "runbook": runbook}}
    run_rules(tmp_path, "PacelineNoVerdict", series, {"40m": [], "53m": [alert]})


def test_an_exporter_that_was_never_configured_is_down_too(tmp_path: Path) -> None:
    rule = ALERTS["PacelineExporterDown"]
    alert = {"exp_labels": {"job": "paceline", **rule["labels"]}, "exp_annotations": rule["annotations"]}
    run_rules(tmp_path, "PacelineExporterDown", {"paceline_up": "_x40"}, {"20m": [alert]})
