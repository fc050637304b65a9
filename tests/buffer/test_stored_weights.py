"""Weights in a store are read whole or not at all, and only from below the place that the settings name."""

import hashlib
from pathlib import Path

import fsspec
import odd_stores
import pytest
from fleet import version
from paceline.buffer.board import stored_weights
from paceline.buffer.board.stored_weights import check_published, count, get, put, read, remove
from paceline.buffer.board.version import BoardState
from paceline.buffer.board.version_store import NO_STORE, VersionStore, store_of
from paceline.buffer.config import BufferConfig
from paceline.buffer.errors import BoardConflict, ConfigError, StoreUnavailable, WeightsRefused
from paceline.buffer.settings.fields import configured
from paceline.buffer.settings.sources import read_settings
from twins.memory_board import MemoryVersionBoard

CONTENT = b"weights of version 0"
DIGEST = hashlib.sha256(CONTENT).hexdigest()

odd_stores.register()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Name of a place that no other test has, without scheme."""
    return f"stored-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]}/default"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "model.safetensors").write_bytes(CONTENT)
    (tmp_path / "v" / "config.json").write_text("{}")
    return tmp_path / "v"


def board_of(uri: str, sha256: str = DIGEST) -> BoardState:
    board = MemoryVersionBoard()
    board.next_number()
    board.register(version(0, weights_uri=uri, sha256=sha256), "learner", "new")
    return board.read()


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_what_is_put_is_there_whole_until_it_is_removed(root: str, folder: Path, tmp_path: Path, scheme: str) -> None:
    place = f"memory://{root}" if scheme == "memory" else (tmp_path / "shared" / "default").as_uri()
    assert count(place) is None
    put(sorted(folder.iterdir()), f"{place}/v000000")
    assert count(place) == 1
    get(f"{place}/v000000", ["config.json", "model.safetensors"], tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"
    assert (tmp_path / "model.safetensors").read_bytes() == CONTENT
    remove(f"{place}/v000000")
    with pytest.raises(StoreUnavailable, match=r"got FileNotFoundError: .*, expected published weights"):
        read(f"{place}/v000000/model.safetensors", len)
    remove(f"{place}/v000000")


def test_a_file_is_given_in_pieces_with_the_digest_of_all(
    root: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put([folder / "model.safetensors"], f"memory://{root}/v")
    monkeypatch.setattr(stored_weights, "_PIECE_BYTES", 7)
    pieces: list[bytes] = []
    assert read(f"memory://{root}/v/model.safetensors", pieces.append) == DIGEST
    assert pieces == [b"weights", b" of ver", b"sion 0"]


def test_half_a_download_is_told_from_other_bytes(root: str, folder: Path) -> None:
    put([folder / "model.safetensors"], f"memory://{root}/v")
    message = f"/v/model.safetensors: got {len(CONTENT) - 1} bytes, expected {len(CONTENT)}; it ended early"
    with pytest.raises(StoreUnavailable, match=message):
        read(f"endsearly://{root}/v/model.safetensors", len)


def test_half_an_upload_is_noticed(root: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = fsspec.filesystem("memory")
    monkeypatch.setattr(system, "put_file", lambda _, path: system.pipe_file(path, b"weights"))
    message = f"got 7 bytes there, expected the {len(CONTENT)} that were sent"
    with pytest.raises(StoreUnavailable, match=message):
        put([folder / "model.safetensors"], f"memory://{root}/v")


def test_an_expired_credential_is_said_of_every_act_with_what_to_check(root: str, folder: Path) -> None:
    place = f"expired://{root}"
    acts = {
        "write it": lambda: put([folder / "model.safetensors"], place),
        "published weights": lambda: read(f"{place}/model.safetensors", len),
        "list it": lambda: count(place),
    }
    for expected, act in acts.items():
        with pytest.raises(StoreUnavailable) as told:
            act()
        assert str(told.value).startswith(f"expired://{root}")
        said = "got PermissionError: The provided token has expired., "
        assert said + f"expected {'to ' * (expected != 'published weights')}{expected}; check cred" in str(told.value)


def test_a_library_that_is_not_installed_or_not_known_is_an_unavailable_store() -> None:
    with pytest.raises(StoreUnavailable, match="nosuch://bucket: got ValueError: Protocol not known: nosuch"):
        count("nosuch://bucket")


@pytest.mark.guarantee("weights-from-own-disk")
def test_a_version_is_located_below_the_store_alone(root: str) -> None:
    store = VersionStore(f"memory://{root}")
    assert store.locate(f"memory://{root}/v1") == f"memory://{root}/v1/model.safetensors"
    assert store.locate("file:///a/v%201") == "/a/v 1/model.safetensors"
    below = f"memory://{root}"
    for other in (f"{below}x/v1", f"{below}/../v1", "http://10.0.0.1/v1", f"simplecache::{below}"):
        assert not store.owns(other)
        with pytest.raises(WeightsRefused, match=r"expected a file:// URI, or one below PACELINE_VERSIONS_URI"):
            store.locate(other)


@pytest.mark.guarantee("password-hidden")
def test_a_refused_place_shows_no_password() -> None:
    with pytest.raises(WeightsRefused, match=r"got 's3://key:\*\*\*@bucket/v1'"):
        NO_STORE.locate("s3://key:hunter2@bucket/v1")


def test_a_store_of_folders_is_read_where_it_is(tmp_path: Path) -> None:
    store = VersionStore((tmp_path / "default").as_uri())
    uri = (tmp_path / "default" / "v1").as_uri()
    assert (store.owns(uri), store.is_away(uri)) == (True, False)
    assert store.locate(uri) == str(tmp_path / "default" / "v1" / "model.safetensors")


@pytest.mark.guarantee("password-hidden")
@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:secret@bucket/drafts",
        "s3://token@bucket/drafts",
        "https://host/drafts?X-Amz-Signature=secret",
        "simplecache::s3://bucket/secret",
        "bucket/secret",
        "s3://bucket/a secret",
    ],
)
def test_a_uri_that_could_hold_a_secret_is_refused_and_not_shown(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"PACELINE_VERSIONS_URI: got .*, expected scheme://place without") as refused:
        configured(BufferConfig, read_settings({"PACELINE_VERSIONS_URI": uri}))
    assert uri not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("s3://bucket/drafts/", "s3://bucket/drafts/nl"),
        ("gs://bucket", "gs://bucket/nl"),
        ("https://host:8443/drafts", "https://host:8443/drafts/nl"),
        ("hf://datasets/org/repo@main/drafts", "hf://datasets/org/repo@main/drafts/nl"),
        ("file:///mnt/drafts", "file:///mnt/drafts/nl"),
        ("", ""),
    ],
)
def test_every_speculator_has_a_place_of_its_own(uri: str, place: str) -> None:
    assert store_of(BufferConfig(speculator="nl", versions_uri=uri)).uri == place


def test_published_weights_are_checked_where_servers_find_them(root: str, folder: Path) -> None:
    store = VersionStore(f"memory://{root}")
    put([folder / "model.safetensors"], f"{store.uri}/v0")
    state = board_of(f"{store.uri}/v0")
    assert check_published(state, 0, store) == f"{store.uri}/v0/model.safetensors"
    other = board_of(f"{store.uri}/v0", "0" * 64)
    with pytest.raises(
        WeightsRefused, match=rf"version 0: got sha256 {DIGEST[:12]}… of memory://.*, expected 0{{12}}…"
    ):
        check_published(other, 0, store)
    remove(f"{store.uri}/v0")
    with pytest.raises(WeightsRefused, match=r"version 0: memory://.*got FileNotFoundError.*pass --unchecked") as gone:
        check_published(state, 0, store)
    assert isinstance(gone.value.__cause__, OSError)  # as of a disk that is away
    with pytest.raises(BoardConflict, match="version 5: got a number that is not on the board"):
        check_published(state, 5, store)
    assert check_published(board_of(folder.as_uri()), 0, store) == str(folder / "model.safetensors")
