"""A server's copies of drafts from a store: whole, as published, bounded, and fetched where no token waits."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import fsspec
import odd_stores
import pytest
from paceline.buffer.errors import StoreUnavailable, WeightsRefused
from paceline.serving.swap import fetch as fetching
from paceline.serving.swap import fetched_weights
from paceline.serving.swap.fetch import fetch, main
from paceline.serving.swap.fetched_weights import AGAIN_S, FETCH_S, REFUSED, UNAVAILABLE, FetchedWeights

odd_stores.register()

CONTENT = b"weights of a version"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Of one file in a store that no other test has, without scheme."""
    name = f"fetched-{digest(str(tmp_path).encode())[:16]}/v1/model.safetensors"
    fsspec.filesystem("memory").pipe_file(f"/{name}", CONTENT)
    return name


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def kept(cache: Path) -> dict[str, bytes]:
    """Everything but the lock."""
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()} | {
        ".lock": b""
    }


def holding(*contents: bytes) -> dict[str, bytes]:
    return {f"{digest(content)}/model.safetensors": content for content in contents} | {".lock": b""}


def test_a_fetched_file_is_under_its_digest(place: str, cache: Path) -> None:
    fetch(f"memory://{place}", digest(CONTENT), cache, max_bytes=1000)
    assert kept(cache) == holding(CONTENT)


@pytest.mark.guarantee("store-away")
def test_half_a_download_leaves_nothing(place: str, cache: Path) -> None:
    with pytest.raises(StoreUnavailable, match="it ended early"):
        fetch(f"endsearly://{place}", digest(CONTENT), cache, max_bytes=1000)
    assert kept(cache) == holding()


def test_other_bytes_leave_nothing_and_are_refused(place: str, cache: Path) -> None:
    expected = f"got sha256 {digest(CONTENT)[:12]}…, expected {digest(b'other')[:12]}…"
    with pytest.raises(WeightsRefused, match=expected):
        fetch(f"memory://{place}", digest(b"other"), cache, max_bytes=1000)
    assert kept(cache) == holding()


def test_what_a_killed_fetch_left_is_cleared(place: str, cache: Path) -> None:
    (cache / ".writing").mkdir(parents=True)
    (cache / ".writing" / "model.safetensors").write_bytes(b"half")
    fetch(f"memory://{place}", digest(CONTENT), cache, max_bytes=1000)
    assert kept(cache) == holding(CONTENT)


@pytest.mark.parametrize("sha256", ["", "../../etc", "ab" * 31, "AB" * 32])
def test_what_is_no_digest_names_no_folder(place: str, cache: Path, sha256: str) -> None:
    with pytest.raises(WeightsRefused, match=r"sha256: got .*, expected 64 hexadecimal digits"):
        fetch(f"memory://{place}", sha256, cache, max_bytes=1000)
    assert not cache.exists()


def put_aged(cache: Path, content: bytes, used_at: float) -> None:
    folder = cache / digest(content)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(content)
    os.utime(folder, (used_at, used_at))


def test_the_least_recently_used_leave_and_what_drafts_stays(place: str, cache: Path) -> None:
    size = len(CONTENT)
    drafting, oldest, newer = (letter * size for letter in (b"d", b"o", b"n"))
    for used_at, content in enumerate((drafting, oldest, newer)):
        put_aged(cache, content, 1000.0 + used_at)
    fetch(f"memory://{place}", digest(CONTENT), cache, max_bytes=3 * size, keep=[digest(drafting)])
    assert kept(cache) == holding(drafting, newer, CONTENT)


def test_without_room_beside_what_drafts_nothing_leaves_that_drafts(place: str, cache: Path) -> None:
    put_aged(cache, b"drafting", 1000.0)
    message = f"got {len(CONTENT)} bytes beside 8 in use, expected at most 20 in .*PACELINE_VERSIONS_CACHE_BYTES"
    with pytest.raises(StoreUnavailable, match=message):
        fetch(f"memory://{place}", digest(CONTENT), cache, max_bytes=20, keep=[digest(b"drafting")])
    assert kept(cache) == holding(b"drafting")


class Fetching:
    """Fetches in this process, and notes what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fault: StoreUnavailable | None = None

    def __call__(self, arguments: list[str]) -> None:
        uri, sha256, cache, max_bytes, *keep = arguments
        self.asked.append(uri)
        if self.fault is not None:
            raise self.fault
        fetch(uri, sha256, Path(cache), max_bytes=int(max_bytes), keep=keep)


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    run = Fetching()
    assert FetchedWeights(tmp_path, 0, run).file("/a/v 1/model.safetensors", "any") == Path("/a/v 1/model.safetensors")
    assert run.asked == []


def test_a_version_is_fetched_once_and_every_use_makes_it_the_last_to_leave(place: str, tmp_path: Path) -> None:
    run = Fetching()
    fetched = FetchedWeights(tmp_path, 1000, run)
    file = fetched.file(f"memory://{place}", digest(CONTENT))
    assert file.read_bytes() == CONTENT
    os.utime(file.parent, (1000.0, 1000.0))
    assert fetched.file(f"memory://{place}", digest(CONTENT)) == file
    assert run.asked == [f"memory://{place}"]
    assert file.parent.stat().st_mtime > 1000.0


def test_a_store_that_is_away_is_not_asked_again_at_once(place: str, tmp_path: Path) -> None:
    run = Fetching()
    now = [50.0]
    fetched = FetchedWeights(tmp_path, 1000, run, lambda: now[0])
    run.fault = StoreUnavailable("the store is away")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="the store is away"):
            fetched.file(f"memory://{place}", digest(CONTENT))
    assert len(run.asked) == 1
    now[0] += AGAIN_S
    run.fault = None
    assert fetched.file(f"memory://{place}", digest(CONTENT)).read_bytes() == CONTENT
    assert len(run.asked) == 2


@pytest.mark.parametrize(
    ("scheme", "sha256", "code", "said"),
    [
        ("memory", digest(CONTENT), 0, ""),
        ("memory", "0" * 64, REFUSED, "(the file was changed)"),
        ("endsearly", digest(CONTENT), UNAVAILABLE, "it ended early"),
        ("expired", digest(CONTENT), UNAVAILABLE, "The provided token has expired."),
    ],
)
def test_the_process_says_how_a_fetch_ended(place, cache, scheme, sha256, code, said, monkeypatch, capsys):
    limits: list[int] = []
    monkeypatch.setattr(fetching.signal, "alarm", limits.append)
    assert main([f"{scheme}://{place}", sha256, str(cache), "1000"]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == (1 if code else 0)
    assert limits == [FETCH_S]


def test_a_process_of_its_own_fetches_and_its_fault_is_the_servers(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    file = tmp_path / "away" / "model.safetensors"
    file.write_bytes(CONTENT)
    fetched = FetchedWeights(tmp_path, 1000)
    assert fetched.file(file.as_uri(), digest(CONTENT)).read_bytes() == CONTENT
    with pytest.raises(WeightsRefused, match=r"got sha256 .*, expected 0{12}…"):
        fetched.file(file.as_uri(), "0" * 64)
    file.unlink()
    with pytest.raises(StoreUnavailable, match=r"got FileNotFoundError: .*, expected published weights"):
        fetched.file(file.as_uri(), "1" * 64)


@pytest.mark.guarantee("store-away")
def test_a_fetch_that_hangs_ends_by_its_own_alarm(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and never answers
        silent.settimeout(60)
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}/model.safetensors"
        command = [sys.executable, "-m", "paceline.serving.swap.fetch", uri, "0" * 64, str(cache), "1000"]
        with subprocess.Popen(command) as process:
            connection, _ = silent.accept()
            assert process.poll() is None
            process.send_signal(signal.SIGALRM)  # as the alarm does after FETCH_S
            code = process.wait(60)
        connection.close()
    assert (code, kept(cache)) == (-signal.SIGALRM, holding())
    ended = subprocess.CompletedProcess([], code, b"", b"")
    monkeypatch.setattr(fetched_weights.subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(StoreUnavailable, match=rf"{uri}: got not all of it in {FETCH_S} s, expected it sooner"):
        FetchedWeights(cache, 1000).file(uri, "0" * 64)
