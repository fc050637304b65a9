"""The live page in a real headless Chromium, served from a real Redis: what a person sees, and what they can do.

`make test-window` runs these; Playwright comes with the extra `window-tests`, axe-core with the make target.
"""

import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from fleet import version
from live_page import served
from paceline.buffer.board.board_access import BoardAccess
from paceline.buffer.board.member_status import MemberStatus, ProcessSaid, TracesSaid
from paceline.buffer.board.operator_acts import promote_as_seen, record_unheard, roll_back_as_seen
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_members import speculators
from paceline.buffer.board.redis_operator import OperatorAuth
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from paceline.buffer.config import BufferConfig
from paceline.buffer.redis_client import connect
from paceline.dashboards.window.acts import Acts
from paceline.dashboards.window.app import make_app
from paceline.dashboards.window.readings import Readings
from page_acts import TOKEN, fill_act
from waiting import until
from window_story import code_then_prose

pytestmark = pytest.mark.window

#: Where `make test-window` puts axe-core.
AXE = Path(sys.prefix) / "axe-core/package/axe.min.js"
IMAGE = '<img src="x" onerror="document.title=\'stolen\'">'


@pytest.fixture
def access(redis_client, tmp_path) -> BoardAccess:
    """Draft 0 was live and 1 is, whose reason is an image; 2 was refused; one replica drafts with 1; a token is set."""
    (tmp_path / WEIGHTS_FILE).write_bytes(b"weights")
    sha256 = sha256_of(tmp_path / WEIGHTS_FILE)
    board = RedisVersionBoard(redis_client, BufferConfig(speculator="demo"))
    for number in range(3):
        made = version(number, weights_uri=tmp_path.as_uri(), sha256=sha256, judged_on=None, scores={})
        board.register(made, "learner", "made")
        state = VersionState.REFUSED if number == 2 else VersionState.LIVE
        board.move(number, state, "learner", f"better {IMAGE}")
    board.beat(
        "replica:a", MemberStatus(draft_version=1, capture="on", traces=TracesSaid(captured=3, delivered=3)), 600.0
    )
    auth = OperatorAuth(redis_client, BufferConfig(speculator="demo"))
    auth.set_token(TOKEN, None, "operator:ann", "first")
    return BoardAccess("demo", board, auth, None)


def serving(access: BoardAccess, client):
    """The page as `paceline window` makes it."""
    acts = Acts(
        lambda order, token: promote_as_seen(access, order, token, "operator:ann"),
        lambda order, token: roll_back_as_seen(access, order, token, "operator:ann"),
        lambda _, acts: record_unheard(access, acts, "operator:ann"),
    )
    readings = Readings(list_names=partial(speculators, client), open_board=lambda _: access.board)
    return served(make_app(readings, acts), readings)


@pytest.fixture
def url(access, redis_client) -> Iterator[str]:
    with serving(access, redis_client) as address:
        yield f"{address}/"


@pytest.fixture
def story_url() -> Iterator[str]:
    """The whole story of code and prose, which stands still."""
    story = code_then_prose()
    refuse = lambda *_: pytest.fail("nobody acts here")  # noqa: E731 - no more than a name
    readings = Readings(list_names=lambda: ["demo"], open_board=lambda _: story.board)
    with served(make_app(readings, Acts(refuse, refuse, refuse)), readings) as address:
        yield f"{address}/"


def test_what_happens_on_the_board_is_on_the_page_without_a_reload(tab, url, access):
    page = tab(url)
    page.wait_for_selector("#draft-title:text-is('Draft 1')")
    access.board.move(2, VersionState.LIVE, "learner", "second thoughts")
    page.wait_for_selector("#draft-title:text-is('Draft 2')")
    assert "second thoughts" in page.inner_text("#draft")
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_a_rollback_by_click_changes_the_board_and_shows_who_took_it(tab, url, access):
    page = tab(url)
    fill_act(page, 1)
    page.click("#act-rollback")
    page.wait_for_selector("#act-result .done")
    assert access.board.read().live == 0
    assert access.board.events()[-1].why == "worse on prose"
    assert "still drafts with 1" in page.inner_text("#act-result")
    access.board.beat("replica:a", MemberStatus(draft_version=0, capture="on"), 600.0)
    page.wait_for_selector("#act-result li:has-text('✓ replica:a: drafts with 0')")


def test_a_promotion_by_click_makes_the_chosen_draft_live(tab, url, access):
    page = tab(f"{url}?draft=2")
    page.wait_for_selector("#draft-title:text-is('Draft 2')")
    fill_act(page, 2, why="it is better than they say")
    page.click("#act-promote")
    page.wait_for_selector("#act-result .done")
    assert access.board.read().live == 2


def test_a_wrong_token_and_a_wrong_number_change_nothing_and_say_so(tab, url, access):
    before = access.board.events()
    page = tab(url)
    fill_act(page, 7)
    page.click("#act-rollback")
    page.wait_for_selector("#act-result:has-text('typed 7, expected 1')")
    page.fill("#act-number", "1")
    page.fill("#act-token", "somebody else's token")
    page.click("#act-rollback")
    page.wait_for_selector("#act-result:has-text('got another token')")
    assert access.board.events() == before
    assert [entry.why for entry in access.auth.history() if entry.refused] == ["got another token"]
    kept = page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}, location.href])")
    assert "token" not in kept


def test_a_page_that_has_not_heard_of_the_newest_board_is_refused(tab, url, access):
    page = tab(url)
    fill_act(page, 1)
    page.route(re.compile(r"/stream\?"), lambda route: route.abort())
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    before = page.evaluate("fetch('/api/draft.json').then((r) => r.json()).then((d) => [d.number, d.state])")
    assert before == [1, "live"]
    access.board.roll_back("operator:bob", "first", 1)
    events = access.board.events()
    told = page.evaluate(
        """([token]) => fetch('/acts/rollback', {method: 'POST', headers: {'Content-Type': 'application/json',
        'X-Paceline-Token': token}, body: JSON.stringify({speculator: 'demo', number: 1, was: 'live', why: 'late'})})
        .then(async (r) => [r.status, (await r.json()).refused])""",
        [TOKEN],
    )
    assert told[0] == 409
    assert "expected live" in told[1]
    assert access.board.events() == events


def test_what_others_wrote_stays_text(tab, url):
    page = tab(url)
    page.wait_for_selector("#lane button")
    assert IMAGE in page.inner_text("#draft")
    assert page.locator("img").count() == 0
    assert page.title() == "paceline demo"


def test_the_page_says_when_redis_dies_and_nothing_green_stays(tab, own_redis):
    with connect(own_redis.url) as client:
        board = RedisVersionBoard(client, BufferConfig(speculator="demo"))
        board.beat("replica:a", MemberStatus(draft_version=0, capture="on"), 600.0)
        access = BoardAccess("demo", board, OperatorAuth(client, BufferConfig(speculator="demo")), None)
        with serving(access, client) as address:
            page = tab(f"{address}/")
            page.wait_for_selector("#members .presence.alive")
            own_redis.stop()
            page.wait_for_selector("#trouble:visible:has-text('Nothing below is known to be so now')", timeout=15_000)
            assert page.locator(".finding.ok").count() == 0
            assert page.locator(".finding.unknown").count() == 5
            assert "grayscale" in page.evaluate("getComputedStyle(document.querySelector('main')).filter")
            own_redis.start("--appendonly", "yes", "--appendfsync", "always")
            page.wait_for_selector("#trouble", state="hidden")
            page.wait_for_selector("#members .presence.alive")


def test_a_lost_page_server_greys_the_page_and_says_since_when(tab, access, redis_client):
    with serving(access, redis_client) as address:
        page = tab(f"{address}/")
        page.wait_for_selector("#connection[data-link=live]")
    page.wait_for_selector("#connection[data-link=lost]", timeout=15_000)
    assert "stream lost since" in page.inner_text("#connection")
    assert page.locator(".finding.ok").count() == 0


def test_a_young_speculator_fills_the_chart_from_its_birth_on(tab, story_url):
    page = tab(f"{story_url}?span=3600")
    page.wait_for_selector("#lane button")
    lefts = page.evaluate("[...document.querySelectorAll('#lane .bar')].map((bar) => parseFloat(bar.style.left))")
    assert 0 <= min(lefts) < 20  # of an hour it would have begun at 80 %
    assert max(lefts) > 60


def test_the_chart_begins_with_the_data_and_with_a_birth_just_before_them(tab, story_url):
    page = tab(story_url)
    panel = "{from: 0, until: 900, width_s: 15, times: [15, 600, 615, 900], pooled: [null, 1.5, null, 1.5], born: %s}"
    shown = [
        page.evaluate(f"import('/static/accept.js').then((m) => m.shownTimes({panel % born}).from)")
        for born in ("null", "-86400", "100", "560")
    ]
    assert shown == [585, 585, 585, 560]


def test_a_hidden_tab_lets_its_stream_go_and_comes_back_by_its_last_id(tab, url):
    page = tab(url)
    streams = []
    page.on("request", lambda request: streams.append(request.url) if "/stream?" in request.url else None)
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    for hidden in ("true", "false"):
        page.evaluate(hide % hidden)
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: page.evaluate("1") and streams, "the tab asks again")
    assert "after=" in streams[-1]
    page.wait_for_selector("#connection[data-link=live]")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 360])
def test_axe_finds_nothing_and_nothing_overflows_or_is_cut(tab, story_url, theme, width):
    page = tab(story_url, color_scheme=theme, viewport={"width": width, "height": 800}, bypass_csp=True)
    page.wait_for_selector("#lane button")
    page.click("#acts summary")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
    assert page.evaluate(f"{cut}.map((box) => box.ariaLabel)") == []
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes.map((n) => n.html)]))")
    assert found == []


@pytest.mark.parametrize("width", [1280, 768, 390])
def test_long_names_of_members_are_not_cut_off(tab, access, redis_client, width):
    host = "gpu-node-0123.eu-west-1.compute.internal"
    server = ProcessSaid(host=host, paceline="0.1.0+g801c959ddfeb", sglang="0.5.23")
    access.board.beat(f"replica:{host}-30000", MemberStatus(draft_version=1, capture="on", server=server), 600.0)
    with serving(access, redis_client) as address:
        page = tab(f"{address}/", viewport={"width": width, "height": 800})
        page.wait_for_selector(f"#members th:text-is('replica:{host}-30000')")
        wide = page.evaluate(
            "[...document.querySelectorAll('#members .scroll')].map((b) => b.scrollWidth - b.clientWidth)"
        )
        assert wide == [0]


def test_everything_can_be_reached_by_keyboard(tab, story_url):
    page = tab(story_url)
    page.wait_for_selector("#lane button")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert [name for name in ("theme", "chart", "lane-row") if name not in reached] == []
    page.focus("#chart")
    page.keyboard.press("ArrowLeft")
    before = page.inner_text("#readout")
    page.keyboard.press("ArrowLeft")
    assert "accept length" in before
    assert page.inner_text("#readout") != before
    page.focus("#lane button >> nth=1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#draft-title:text-is('Draft 5')")
    assert page.evaluate("document.activeElement.id") == "draft-title"


def test_drift_and_moved_labels_are_told_apart_and_a_missing_link_has_its_reason(tab, story_url):
    page = tab(story_url)
    page.wait_for_selector("#legend li:has(.swatch.drifted):has-text('test fired')")
    page.wait_for_selector("#legend li:has(.swatch.moved):has-text('other labels')")
    look = "(kind) => getComputedStyle(document.querySelector(`.swatch.${kind}`)).backgroundImage"
    assert "repeating-linear-gradient" in page.evaluate(look, "drifted")
    assert page.evaluate(look, "moved") == "none"
    assert "Drift tests that fired: 1." in page.inner_text("#accept-summary")
    assert "no link to MLflow: no learner has said where MLflow is" in page.inner_text("#draft .commands")


def test_a_verdict_leads_and_its_sentence_is_there_on_request(tab, access, redis_client):
    why = because(ReasonCode.PROVEN, odds=393, needed=10, requests=40)
    access.board.move(2, VersionState.LIVE, "learner", why)
    with serving(access, redis_client) as address:
        page = tab(f"{address}/")
        page.wait_for_selector("#draft > .reason:text-is('promoted: proven, 393 to 1')")
        assert "10 to 1 are enough" not in page.inner_text("main")
        page.click("#draft summary:has-text('proven, 393 to 1')")
        assert "10 to 1 are enough" in page.inner_text("#draft details.reason")


def test_the_theme_is_switched_by_hand_and_kept(tab, story_url):
    page = tab(story_url, color_scheme="light")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    page.wait_for_selector(".finding")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def updates(panels: dict, first: int, count: int) -> str:
    """Events of a stream as the server writes them: everything moves on by a second each."""
    lines = ["retry: 600000\n\n"]
    for number in range(first, first + count):
        accept = panels["accept"]
        times = {"from": accept["from"] + number, "until": accept["until"] + number}
        moved = {**accept, **times, "times": [at + number for at in accept["times"]]}
        told = {"panels": {**panels, "accept": moved}, "speculator": f"demo-{number}", "speculators": ["demo"]}
        lines.append(f"event: panels\nid: x-{number}\ndata: {json.dumps(told)}\n\n")
    return "".join(lines)


def test_an_hour_of_updates_leaves_the_heap_as_it_was(tab, story_url, capsys):
    names = ("headline", "accept", "lane", "positions", "draft", "loop", "members")
    panels = {name: httpx.get(f"{story_url}api/{name}.json").json() for name in names}
    done, wanted = 0, 300

    def stream(route) -> None:
        nonlocal done
        heard = re.search(r"after=x-(\d+)", route.request.url)  # as the server does: on from what the page has heard
        done = int(heard[1]) if heard else 0
        count = min(100, wanted - done)
        route.fulfill(body=updates(panels, done + 1, count), content_type="text/event-stream")
        done += count

    page = tab(story_url, before=lambda page: page.route(re.compile(r"/stream\?"), stream))
    session = page.context.new_cdp_session(page)

    def heap_after(count: int) -> int:
        nonlocal wanted
        wanted = count
        while done < count:
            until(lambda: page.title() == f"paceline demo-{done}", "the page has heard all of it")
            page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        until(lambda: page.title() == f"paceline demo-{count}", "the page has heard all of it")
        session.send("HeapProfiler.collectGarbage")
        return session.send("Runtime.getHeapUsage")["usedSize"]

    after_300, after_3600 = heap_after(300), heap_after(3600)
    assert done == 3600
    with capsys.disabled():
        sys.stdout.write(f"\nheap after 300 updates {after_300} bytes, after 3600 {after_3600}\n")
    assert after_3600 <= 1.1 * after_300


def test_the_first_paint_is_reported_and_the_page_is_small(tab, story_url, capsys):
    page = tab(story_url)
    entries = "performance.getEntriesByType('paint').map((e) => [e.name, e.startTime])"
    until(lambda: len(page.evaluate(entries)) == 2, "the page is painted")
    files = "performance.getEntriesByType('resource').filter((e) => !e.name.includes('/stream'))"
    sizes = page.evaluate(f"{files}.map((e) => e.encodedBodySize)")
    assert 0 < sum(sizes) < 300_000
    painted = dict(page.evaluate(entries))["first-contentful-paint"]
    with capsys.disabled():
        sys.stdout.write(f"\nfirst contentful paint {painted:.0f} ms, page {sum(sizes)} bytes\n")
