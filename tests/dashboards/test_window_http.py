"""The live page over HTTP on a real Redis: who may ask, who may act, what is refused, and what is left on record."""

import json
from functools import partial

import httpx
import msgspec
import pytest
from fleet import publish
from live_page import served
from paceline.buffer.board.board_access import BoardAccess
from paceline.buffer.board.operator_acts import Order, promote_as_seen, record_unheard, roll_back_as_seen
from paceline.buffer.board.redis_board import RedisVersionBoard
from paceline.buffer.board.redis_members import speculators
from paceline.buffer.board.redis_operator import OperatorAuth
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BufferUnavailable, OperatorRefused
from paceline.dashboards.window.acts import Acts, Doorkeeper, perform
from paceline.dashboards.window.app import make_app
from paceline.dashboards.window.attempts import MAX_WRONG, WINDOW_S, Attempts, Unheard
from paceline.dashboards.window.files import STATIC, read_files
from paceline.dashboards.window.guard import HEADERS, Guard
from paceline.dashboards.window.panels import PANELS
from paceline.dashboards.window.readings import Readings

TOKEN, BY = "the operator's own token", "operator:ann, on the page"


@pytest.fixture
def access(redis_client, tmp_path) -> BoardAccess:
    """Versions 0 and 1 were live, 2 is; a token is set."""
    weights = tmp_path / WEIGHTS_FILE
    weights.write_bytes(b"weights")
    board = RedisVersionBoard(redis_client, BufferConfig(speculator="demo"))
    publish(board, 0, 1, 2, weights_uri=tmp_path.as_uri(), sha256=sha256_of(weights))
    auth = OperatorAuth(redis_client, BufferConfig(speculator="demo"))
    auth.set_token(TOKEN, None, "operator:ann", "first")
    return BoardAccess("demo", board, auth, None)


@pytest.fixture
def page(access, redis_client):
    """A client of the page, which asks as a browser on the page does."""
    acts = Acts(
        lambda order, token: promote_as_seen(access, order, token, BY),
        lambda order, token: roll_back_as_seen(access, order, token, BY),
        lambda _, acts: record_unheard(access, acts, BY),
    )
    readings = Readings(list_names=partial(speculators, redis_client), open_board=lambda _: access.board)
    with (
        served(make_app(readings, acts), readings) as url,
        httpx.Client(base_url=url, headers={"Origin": url}, timeout=60.0) as client,
    ):
        yield client


def act(page: httpx.Client, name: str, token: str = TOKEN, **changes: object) -> httpx.Response:
    order = {"speculator": "demo", "number": 2, "was": "live", "why": "worse on prose", **changes}
    return page.post(f"/acts/{name}", json=order, headers={"X-Paceline-Token": token})


def refused(access: BoardAccess) -> list[tuple[str, str, str]]:
    return [(entry.by, entry.what, entry.why) for entry in access.auth.history() if entry.refused]


def test_every_panel_is_json_at_its_own_address(page):
    for panel in PANELS:
        assert page.get(f"/api/{panel}.json", params={"speculator": "demo"}).status_code == 200
    assert page.get("/api/lane.json").json()["drafts"][0]["number"] == 2
    assert page.get("/api/draft.json", params={"draft": 1}).json()["state"] == "retired"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/nothing.json", 404),
        ("/api/lane.json?speculator=other", 404),
        ("/api/accept.json?span=7", 422),
        ("/api/draft.json?draft=-1", 422),
        ("/static/%2e%2e/app.py", 404),
        ("/static/README.md", 404),
        ("/docs", 404),
    ],
)
def test_what_is_not_there_is_refused_in_words(page, path, status):
    answer = page.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.guarantee("page-headers")
@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/lane.json", "/api/nothing.json", "/nothing"])
def test_every_answer_has_the_headers_that_keep_others_out(page, path):
    answer = page.get(path)
    assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy


@pytest.mark.guarantee("page-headers")
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8780", "127.0.0.1.evil.example", "", "localhost@evil.example"]
)
def test_a_name_that_is_not_this_machines_is_refused_with_the_headers(page, host):
    answer = page.get("/api/lane.json", headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["refused"].startswith("Host: got")
    assert answer.headers["Content-Security-Policy"] == HEADERS["Content-Security-Policy"]


def test_this_machine_and_the_names_that_were_allowed_are_let_in():
    guard = Guard(lambda *_: None, ["gpu-0.lan"])
    for host in ("127.0.0.1:8780", "localhost", "[::1]:8780", "LOCALHOST:1", "gpu-0.lan:80"):
        assert guard.refusal("GET", {"host": host}) == ""
    assert "evil.lan" in guard.refusal("GET", {"host": "evil.lan"})
    assert guard.refusal("GET", {"host": "gpu-0.lan,evil.lan"})


@pytest.mark.guarantee("page-origin")
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"])
def test_a_page_of_another_origin_can_neither_act_nor_ask(page, access, origin):
    before = access.board.events()
    assert act(page, "rollback").request.headers["Origin"] == str(page.base_url).rstrip("/")
    access.board.move(2, VersionState.LIVE, "learner", "again")
    after = access.board.events()
    page.headers["Origin"] = origin
    assert act(page, "rollback").status_code == 403
    assert page.get("/api/lane.json").status_code == 403
    assert (access.board.events(), len(after) > len(before)) == (after, True)


@pytest.mark.guarantee("page-origin")
def test_an_act_without_an_origin_is_refused(page, access):
    del page.headers["Origin"]
    assert act(page, "rollback").json() == {"refused": "Origin: got none, expected this page's own"}
    assert access.board.read().live == 2


def test_a_rollback_with_the_token_changes_what_is_live_and_says_who_and_why(page, access):
    answer = act(page, "rollback")
    assert (answer.status_code, answer.json()["live"]) == (200, 1)
    assert [(event.number, event.by, event.why) for event in access.board.events()[-2:]] == [
        (2, BY, "worse on prose"), (1, BY, "worse on prose"),
    ]  # fmt: skip
    assert page.get("/api/lane.json").json()["drafts"][0]["state"] == "rolled_back"


def test_a_promotion_with_the_token_checks_the_weights_first(page, access, tmp_path):
    assert act(page, "promote", number=0, was="retired").json()["live"] == 0
    (tmp_path / WEIGHTS_FILE).write_bytes(b"others")
    answer = act(page, "promote", number=1, was="retired")
    assert (answer.status_code, access.board.read().live) == (409, 0)
    assert "sha256" in answer.json()["refused"]


@pytest.mark.guarantee("page-stale")
@pytest.mark.parametrize("name", ["rollback", "promote"])
def test_a_page_that_shows_an_older_board_is_refused_and_changes_nothing(page, access, name):
    access.board.roll_back("operator:bob", "first", 2)
    before = access.board.events()
    answer = act(page, name, was="live" if name == "rollback" else "retired")
    assert answer.status_code == 409
    assert "expected live" in answer.json()["refused"] or "expected retired" in answer.json()["refused"]
    assert (access.board.events(), refused(access)) == (before, [])


@pytest.mark.guarantee("operator-token")
@pytest.mark.parametrize(("name", "said"), [("rollback", "rollback 2"), ("promote", "promote 2")])
def test_a_wrong_token_changes_nothing_and_is_on_record(page, access, name, said):
    before = access.board.events()
    answer = act(page, name, token="another operator's token")
    assert answer.status_code == 403
    assert "the operator's own token" not in answer.text
    assert access.board.events() == before
    assert refused(access) == [(BY, f"refused: {said}", "got another token")]


@pytest.mark.guarantee("page-wrong-tokens")
def test_five_wrong_tokens_a_minute_are_the_last_that_are_looked_at(page, access):
    before = access.board.events()
    assert [act(page, "rollback", token=f"a wrong token, try {n}").status_code for n in range(MAX_WRONG)] == [403] * 5
    assert act(page, "rollback", token="a wrong token, once more").status_code == 429
    assert act(page, "rollback").status_code == 429
    assert access.board.events() == before
    assert len(refused(access)) == MAX_WRONG


@pytest.mark.guarantee("page-wrong-tokens")
def test_acts_that_are_not_heard_are_on_record_as_one_entry_a_minute(access):
    due = []
    unheard = Unheard(
        lambda _, acts: record_unheard(access, acts, BY), lambda seconds, tell: due.append((seconds, tell))
    )
    door = Doorkeeper(Attempts(lambda: 0.0), unheard)
    raw = msgspec.json.encode(Order("demo", 2, VersionState.LIVE, "worse"))
    wrong = lambda token: perform(refuse, "rollback", raw=raw, token=token, door=door, now=lambda: 0.0).status  # noqa: E731 - a name
    assert [wrong("a wrong token") for _ in range(MAX_WRONG)] == [403] * MAX_WRONG
    assert [wrong(TOKEN) for _ in range(3)] == [429] * 3
    ((seconds, tell),) = due
    assert (seconds, refused(access)) == (WINDOW_S, [])
    tell()
    assert refused(access) == [(BY, "refused: 3 acts not heard", "too many wrong tokens just before")]
    assert wrong(TOKEN) == 429
    due[1][1]()
    assert refused(access)[1:] == [(BY, "refused: 1 act not heard", "too many wrong tokens just before")]


def refuse(*_: object) -> int | None:
    raise OperatorRefused


def test_unheard_acts_are_counted_for_few_names_and_a_redis_that_is_away_breaks_nothing(caplog):
    told, due = [], []

    def tell(speculator: str, acts: int) -> None:
        told.append((speculator, acts))
        raise BufferUnavailable

    unheard = Unheard(tell, lambda _, tell: due.append(tell))
    for number in range(1000):
        unheard.add(f"made up {number}")
        unheard.add("demo 1")
    due[0]()
    assert len(due) == 1
    assert len(told) == 16
    assert caplog.text.count("not on record") == 16


@pytest.mark.guarantee("page-wrong-tokens")
def test_attempts_are_forgotten_after_a_minute_and_those_with_the_right_token_at_once():
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(3 * MAX_WRONG):
        begun = attempts.begin()
        assert begun is not None
        attempts.forgive(begun)
    assert [attempts.begin() for _ in range(MAX_WRONG + 1)] == [0.0] * MAX_WRONG + [None]
    now[0] = WINDOW_S - 0.001
    assert attempts.begin() is None
    now[0] = WINDOW_S
    assert attempts.begin() == WINDOW_S


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"why": " "}, "reason: got 0 characters"),
        ({"why": "x" * 301}, "reason: got 301 characters"),
        ({"was": "dead"}, "order: "),
        ({"number": "2"}, "order: "),
        ({"unchecked": True}, "order: "),
    ],
)
def test_an_order_that_says_too_little_or_too_much_is_refused(page, access, changes, said):
    answer = act(page, "rollback", **changes)
    assert (answer.status_code, access.board.read().live) == (422, 2)
    assert answer.json()["refused"].startswith(said)


def test_a_token_comes_in_the_header_alone(page, access):
    order = {"speculator": "demo", "number": 2, "was": "live", "why": "worse"}
    assert page.post("/acts/rollback", json=order, params={"token": TOKEN}).status_code == 422
    assert page.post("/acts/rollback", json={**order, "token": TOKEN}).status_code == 422
    assert access.board.read().live == 2


def test_a_form_and_a_flood_are_refused(page, access):
    headers = {"X-Paceline-Token": TOKEN}
    assert page.post("/acts/rollback", data={"number": "2"}, headers=headers).status_code == 415
    assert act(page, "rollback", why="x" * 5000).status_code == 413
    assert page.get("/acts/rollback").status_code == 405
    assert access.board.read().live == 2


def test_while_no_token_is_set_nobody_acts_on_the_page(page, access, redis_client):
    redis_client.delete("paceline:{demo}:operator_token")
    answer = act(page, "rollback")
    assert (answer.status_code, access.board.read().live) == (403, 2)
    assert "paceline token set" in answer.json()["refused"]


def test_a_reason_out_of_redis_is_a_json_string_and_nothing_else(page, access):
    access.board.roll_back("operator:eve", "<img src=x onerror=alert(1)>\x1b[2J", 2)
    raw = page.get("/api/draft.json", params={"draft": 2})
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert json.loads(raw.text)["why"] == "<img src=x onerror=alert(1)>\x1b[2J"


def test_the_page_loads_nothing_from_elsewhere_and_has_nothing_inline():
    files = read_files()
    assert sum(len(file.content) for file in files.values()) < 300_000
    text = {name: file.content.decode() for name, file in files.items() if not name.startswith("vendor/")}
    foreign = [
        name
        for name, words in text.items()
        if "//" in words.replace("http://www.w3.org/2000/svg", "") and name.endswith((".html", ".css"))
    ]
    assert foreign == []
    page = text["index.html"]
    assert [mark for mark in ("<style", "style=", "onclick", "javascript:") if mark in page] == []
    assert page.count("<script") == page.count('<script src="/static/')
    scripts = "".join(words for name, words in text.items() if name.endswith(".js"))
    unsafe = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "http://",
        "https://",
    )
    assert [word for word in unsafe if word in scripts] == []


def test_vendored_files_are_those_that_their_release_has():
    lines = (STATIC / "vendor/SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    assert {name: sha256_of(STATIC / "vendor" / name) for name in listed} == listed
    assert listed["uPlot.iife.min.js"] == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert {path.name for path in (STATIC / "vendor").iterdir()} == {*listed, "SHA256SUMS", "README.md"}
    assert "The MIT License" in (STATIC / "vendor/uPlot.LICENSE").read_text()


def test_nothing_is_written_to_a_speculator_without_a_token(access, redis_client):
    redis_client.delete("paceline:{demo}:operator_token")
    before = set(redis_client.keys())
    record_unheard(access, 7, BY)
    assert set(redis_client.keys()) == before
