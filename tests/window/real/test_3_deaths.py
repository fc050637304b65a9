"""kill -9 of the learner, of the server, of Redis: page and commands say so within 15 s, an alert within 75 s.

What died is nowhere called well any more, and everything recovers once it is back.
"""

import io
import json
import time

import numpy as np
import pytest
from page_greens import greens
from PIL import Image
from real_stack import LEARNER, REPLICA
from waiting import until

pytestmark = pytest.mark.window

#: Seconds from a death until it is told: by the page and to whoever asks by then, and by an alert.
TOLD_S, FIRES_S = 15.0, 75.0
#: From a start until everybody says that all is well again.
RECOVERS_S = 60.0

#: Alerts of what is not there.
SILENCE = {"PacelineMemberSilent", "PacelineNobodyServes", "PacelineNobodyLearns", "PacelineRedisDown"}


class Death:
    """Counts from a kill."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def left_s(self, limit_s: float) -> float:
        return max(limit_s - (time.monotonic() - self._at), 0.001)

    def is_past(self, limit_s: float) -> bool:
        return time.monotonic() - self._at >= limit_s

    def on_page(self, page, selector: str) -> None:
        """The page shows it in time."""
        page.wait_for_selector(selector, timeout=1000 * self.left_s(TOLD_S))

    def said_by(self, real, command: str, is_said) -> None:
        """Whoever asks TOLD_S after the death is told, if not earlier."""
        while True:
            is_late = self.is_past(TOLD_S)
            done = real.command(command)
            if is_said(done):
                return
            assert not is_late, (command, done.returncode, done.stdout, done.stderr)

    def fires(self, real, name: str, **labels: str) -> None:
        until(lambda: fires(real, name, **labels), f"{name} to fire", self.left_s(FIRES_S))


def fires(real, name: str, **labels: str) -> bool:
    return any(labels.items() <= alert.items() for alert in real.firing() if alert["alertname"] == name)


@pytest.fixture
def everybody(real):
    """Server and learner are alive, and nothing is wrong."""
    for service in (real.server, real.learner):
        if not service.is_running():
            service.start()
    assert_well_again(real)
    return real


def assert_well_again(real) -> None:
    until(lambda: {REPLICA, LEARNER} <= real.board.heartbeats().keys(), "server and learner to beat", RECOVERS_S)
    until(lambda: real.command("alarms").returncode == 0, "no alarm to stand", RECOVERS_S)
    until(lambda: not SILENCE & {alert["alertname"] for alert in real.firing()}, "the alerts to end", RECOVERS_S)


def row(member: str, presence: str) -> str:
    return f"#members tr:has(th:text-is('{member}')) .presence.{presence}"


def names(done, member: str) -> bool:
    """Whether a command says that this member is silent, and that something is wrong."""
    words = " ".join(done.stdout.split())
    return done.returncode == 1 and "member_silent" in words and member in words


def levels(real) -> dict[str, str]:
    return {found["topic"]: found["level"] for found in json.loads(real.command("status", "--json").stdout)["answers"]}


@pytest.mark.guarantee("alarm-member-silent")
def test_a_killed_learner_is_told_by_page_commands_and_alert(everybody, tab):
    real, page = everybody, tab(everybody.page_url)
    page.wait_for_selector(row(LEARNER, "alive"))
    real.learner.kill()
    death = Death()
    death.on_page(page, row(LEARNER, "silent"))
    for command in ("status", "alarms"):
        death.said_by(real, command, lambda done: names(done, LEARNER))
    found = levels(real)
    assert (found["loop"], found["alarms"]) == ("note", "wrong")
    assert page.locator(".finding.ok strong").all_inner_texts() == [name for name in found if found[name] == "ok"]
    assert "✓ alive" not in page.inner_text(f"#members tr:has(th:text-is('{LEARNER}'))")
    assert page.inner_text("#loop dd").startswith("silent, last seen") or "silent, last seen" in page.inner_text(
        "#loop"
    )
    death.fires(real, "PacelineMemberSilent", member=LEARNER)
    real.learner.start()
    page.wait_for_selector(row(LEARNER, "alive"), timeout=1000 * RECOVERS_S)
    assert_well_again(real)


@pytest.mark.guarantee("alarm-member-silent")
def test_a_killed_server_is_told_by_page_commands_and_alert(everybody, tab):
    real, page = everybody, tab(everybody.page_url)
    page.wait_for_selector(row(REPLICA, "alive"))
    death = Death()
    real.kill_sglang()
    death.on_page(page, row(REPLICA, "silent"))
    for command in ("status", "alarms"):
        death.said_by(real, command, lambda done: names(done, REPLICA))
    found = levels(real)
    assert set(found.values()) == {"unknown", "wrong"}
    assert found["alarms"] == "wrong"
    assert sorted(greens(page)) == ["live", "✓ alive"]  # the page's own stream, and the learner
    assert "✓ alive" in page.inner_text(f"#members tr:has(th:text-is('{LEARNER}'))")
    death.fires(real, "PacelineMemberSilent", member=REPLICA)
    real.server.start()
    page.wait_for_selector(row(REPLICA, "alive"), timeout=1000 * RECOVERS_S)
    assert_well_again(real)


def test_a_killed_redis_is_told_by_page_commands_and_alert(everybody, tab):
    real, page = everybody, tab(everybody.page_url)
    page.wait_for_selector(row(REPLICA, "alive"))
    real.redis.kill()
    death = Death()
    death.on_page(page, "#trouble:visible:has-text('Nothing below is known to be so now')")
    for command in ("status", "alarms"):
        death.said_by(real, command, lambda done: done.returncode == 2 and "Redis" in done.stderr)
        assert real.command(command).stdout == ""
    assert page.locator(".finding.unknown").count() == page.locator(".finding").count() == 5
    assert green_pixels(page) == 0
    death.fires(real, "PacelineRedisDown")
    real.redis.start()
    page.wait_for_selector("#trouble", state="hidden", timeout=1000 * RECOVERS_S)
    page.wait_for_selector(row(REPLICA, "alive"), timeout=1000 * RECOVERS_S)
    assert_well_again(real)
    assert green_pixels(page) > 0


def green_pixels(page) -> int:
    """Pixels of the whole page in which green stands out."""
    shot = np.asarray(Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")).astype(int)
    red, green, blue = (shot[..., place] for place in range(3))
    return int(((green - red > 30) & (green - blue > 15)).sum())
