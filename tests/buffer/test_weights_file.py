"""The weights of a version are found, read whole and compared with the board before an operator moves it."""

import hashlib
from pathlib import Path

import pytest
from fleet import version
from paceline.buffer.board.version import BoardState, VersionState
from paceline.buffer.board.weights_file import check_weights, weights_file
from paceline.buffer.errors import BoardConflict, WeightsRefused
from twins.memory_board import MemoryVersionBoard

CONTENT = b"weights of version 1"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "v 000001"
    made.mkdir()
    (made / "model.safetensors").write_bytes(CONTENT)
    return made


def board_of(uri: str) -> BoardState:
    board = MemoryVersionBoard()
    for number, sha256 in enumerate(("0" * 64, DIGEST)):
        board.next_number()
        board.register(version(number, weights_uri=uri, sha256=sha256), "learner", "new")
    board.move(0, VersionState.LIVE, "learner", "start")
    return board.read()


def test_intact_weights_give_their_file(folder: Path) -> None:
    assert check_weights(board_of(folder.as_uri()), 1) == folder / "model.safetensors"


def test_one_changed_bit_is_refused_with_both_digests(folder: Path) -> None:
    changed = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    (folder / "model.safetensors").write_bytes(changed)
    with pytest.raises(WeightsRefused) as refused:
        check_weights(board_of(folder.as_uri()), 1)
    got = hashlib.sha256(changed).hexdigest()[:12]
    assert f"version 1: got sha256 {got}… of {folder}/model.safetensors, expected {DIGEST[:12]}…" in str(refused.value)
    assert "--unchecked" not in str(refused.value)


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_missing_weights_are_refused_with_what_to_do(folder: Path, lost: str) -> None:
    (folder / "model.safetensors").unlink()
    if lost == "folder":
        folder.rmdir()
    with pytest.raises(WeightsRefused) as refused:
        check_weights(board_of(folder.as_uri()), 1)
    assert f"version 1: got no readable {folder}/model.safetensors (No such file or directory)" in str(refused.value)
    assert "pass --unchecked" in str(refused.value)


def test_a_path_cannot_steer_the_terminal() -> None:
    with pytest.raises(WeightsRefused, match="got no readable /v\N{REPLACEMENT CHARACTER}") as refused:
        check_weights(board_of("file:///v%1b%5b2J"), 1)
    assert str(refused.value).isprintable()


def test_a_number_that_is_not_on_the_board_is_refused_before_any_disk_is_read(folder: Path) -> None:
    message = r"version 7: got a number that is not on the board, expected one of \[0, 1\]"
    with pytest.raises(BoardConflict, match=message):
        check_weights(board_of(folder.as_uri()), 7)


@pytest.mark.guarantee("weights-from-own-disk")
def test_only_file_uris_name_weights() -> None:
    assert str(weights_file("file:///a/v%20b")) == "/a/v b/model.safetensors"
    with pytest.raises(WeightsRefused, match=r"weights_uri: got 's3://bucket/v1', expected a file:// URI"):
        weights_file("s3://bucket/v1")
