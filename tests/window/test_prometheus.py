"""A real Prometheus scrapes the real exporter over a real Redis: every query has an answer, and every death an alert.

Members are stand-ins that beat on the real board; that servers and learners send such counters, tests/e2e shows.
"""

import json
import re
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml
from fleet import DRAFTED_TOKENS, PLAIN_TOKENS, beating, learner_status, replica_status, version
from monitoring import RULES, exporter_service, prometheus_service
from paceline.buffer.board.board_access import open_board
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.version_board import VersionBoard
from paceline.buffer.settings.sources import read_settings
from paceline.policies.readings.serving_readings import accept_length
from paceline.policies.readings.speed import speed_over_plain
from paceline.policies.readings.windows import windowed
from paceline.rig.readiness import free_port
from paceline.rig.services import Service, redis_service
from waiting import until

pytestmark = pytest.mark.window

BOARDS = Path(__file__).resolve().parents[2] / "dashboards/grafana/boards"

#: After a death, an alert must fire within so many seconds.
ALERT_LIMIT_S = 75.0


@dataclass
class Stack:
    """What runs; `silence` ends the beats of replica:b."""

    redis: Service
    exporter: Service
    board: VersionBoard
    port: int
    silence: Event

    def ask(self, expression: str) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}", timeout=10) as reply:
            return json.load(reply)["data"]["result"]

    def number(self, expression: str) -> float:
        (found,) = self.ask(expression)
        return float(found["value"][1])


def queries() -> dict[str, str]:
    """Query -> where it is, of every panel and annotation of the boards, with all speculators chosen."""
    found: dict[str, str] = {}
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        asked = [(target["expr"], panel["title"]) for panel in board["panels"] for target in panel["targets"]]
        asked += [(mark["expr"], mark["name"]) for mark in board["annotations"].get("list", [])]
        found |= {text.replace("$speculator", ".*"): f"{path.stem}: {title}" for text, title in asked}
    return {text: place for text, place in found.items() if "sglang:" not in text}


#: What the gate predicted of every draft.
SCORES = {"judged_accept_length": 2.3, "predicted_accept_length": 2.4, "predicted_standard_error": 0.1}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus on PATH: apt-get install prometheus")
    folder, started_at = tmp_path_factory.mktemp("prometheus"), time.time()
    redis_port, exporter_port, port = free_port(), free_port(), free_port()
    url = f"redis://127.0.0.1:{redis_port}/0"
    with ExitStack() as entered:
        redis = entered.enter_context(redis_service(folder / "redis", redis_port))
        board = open_board(read_settings({}), url, "default").board
        for number in range(2):
            board.register(version(number, scores=SCORES), "learner", "trained")
        board.move(0, VersionState.LIVE, "learner", "first")
        board.move(1, VersionState.CANARY, "learner", "on trial", replica="a")
        exporter = entered.enter_context(exporter_service(exporter_port, url, log=folder / "e.log"))
        entered.enter_context(prometheus_service(folder / "prometheus", port, exporter_port, "1s"))
        served = partial(replica_status, "a", started_at, draft=1)
        entered.enter_context(beating(board, "replica:a", lambda beats: served(beats, refused=int(beats > 20))))
        of_b = partial(replica_status, "b", started_at, draft=1)
        silence = entered.enter_context(beating(board, "replica:b", of_b))
        entered.enter_context(beating(board, "learner:c", partial(learner_status, "c", started_at)))
        yield Stack(redis, exporter, board, port, silence)


def selectors_of_alerts() -> set[str]:
    """Every series that an alert asks for, some time in the last minutes; what it compares is left to promtool."""
    groups = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    text = " ".join(rule["expr"] for group in groups for rule in group["rules"])
    return {
        f"last_over_time({found}[10m])" for found in re.findall(r"\b(?:paceline[_:][\w:]+|up\b)(?:\{[^}]*\})?", text)
    }


def recorded() -> set[str]:
    groups = yaml.safe_load((RULES / "recording.yml").read_text(encoding="utf-8"))["groups"]
    return {rule["record"] for group in groups for rule in group["rules"]}


def test_every_query_of_every_dashboard_and_alert_has_an_answer(stack: Stack) -> None:
    until(lambda: stack.ask("paceline_canary_draft"), "the first scrape")
    stack.board.move(1, VersionState.LIVE, "operator", "promoted")  # the annotation of the third dashboard
    left = {*queries(), *selectors_of_alerts(), *recorded()}
    assert len(left) > 60

    def is_answered() -> bool:
        left.difference_update([query for query in left if stack.ask(query)])
        return not left

    try:
        until(is_answered, "answers of Prometheus", limit_s=120.0)
    except AssertionError as late:
        raise AssertionError(f"no data for {sorted(left)}") from late


def test_figures_are_those_that_the_readings_give(stack: Stack) -> None:
    members = ("replica:a", "replica:b", "learner:c")
    histories = {member: stack.board.history(member) for member in members}
    window = windowed(histories, 0.0, time.time())
    cells = window.table("served", "cells")
    assert cells
    # Beats add to every count alike, so ratios are the same whenever one looks; totals only grow.
    rounds = sum(row.rounds for row in cells.values())
    assert stack.number("sum(paceline_verify_rounds_total)") >= rounds > 0
    told = accept_length(window).value
    assert told == pytest.approx(2.5)
    assert stack.number("paceline:accept_length:rate5m") == pytest.approx(told, rel=1e-3)
    speed = speed_over_plain(window).value
    assert speed == pytest.approx(DRAFTED_TOKENS / PLAIN_TOKENS)
    assert stack.number("paceline:speed_over_plain") == pytest.approx(speed, rel=1e-3)
    assert stack.number("paceline:live_predicted_accept_length") == 2.4


def fires_within(stack: Stack, name: str) -> None:
    alert = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
    until(lambda: stack.ask(alert), f"{name} to fire", limit_s=ALERT_LIMIT_S)


def test_a_replica_that_falls_silent_is_told_within_75_seconds(stack: Stack) -> None:
    assert stack.ask('ALERTS{alertname="PacelineMemberSilent"}') == []
    stack.silence.set()
    until(lambda: not stack.ask('paceline_verify_rounds_total{member="replica:b"}'), "its counters to go", 30.0)
    until(lambda: stack.ask('paceline_alarm{member="replica:b",name="member_silent"}'), "its alarm", 30.0)
    fires_within(stack, "PacelineMemberSilent")


def test_a_killed_redis_is_told_and_nothing_of_the_board_stays(stack: Stack) -> None:
    stack.redis.kill()
    until(lambda: stack.ask("paceline_up == 0"), "the exporter to notice", 30.0)
    until(lambda: not stack.ask("paceline_live_draft"), "what the board said to go", 30.0)
    assert stack.ask("paceline_member_alive") == []
    fires_within(stack, "PacelineRedisDown")


def test_a_killed_exporter_is_told(stack: Stack) -> None:
    stack.exporter.kill()
    fires_within(stack, "PacelineExporterDown")
