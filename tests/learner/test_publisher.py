"""Publishing: a version on the board always has its whole folder, whenever the publisher died."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from made_versions import made_version
from paceline.buffer.board.reason import ReasonCode, because
from paceline.buffer.board.version import DraftVersion, VersionState
from paceline.buffer.errors import BoardConflict, ConfigError
from paceline.learner import disk
from paceline.learner.delivery.publisher import Lineage, prune, publish, publish_initial
from paceline.learner.delivery.version_folders import version_folder
from paceline.learner.disk import sweep, write_folder, write_text
from twins.memory_board import MemoryVersionBoard

LINEAGE = Lineage(
    parent=0,
    target="target",
    target_version="1",
    objective="committed",
    trained_on=("1-0", "9-0"),
    scores={"judged_accept_length": 2.5},
)


class DiedError(Exception):
    """The process ended here."""


def weights(content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_text(content)
        (folder / "config.json").write_text("{}")

    return write


def put(board: MemoryVersionBoard, versions: Path, content: str = "w") -> DraftVersion:
    return publish(board, versions, weights(content), LINEAGE, by="learner", why="better")


@pytest.fixture
def board() -> MemoryVersionBoard:
    return MemoryVersionBoard()


@pytest.fixture
def started(board: MemoryVersionBoard, tmp_path: Path) -> MemoryVersionBoard:
    """A board on which version 0 is live."""
    initial = tmp_path / "initial"
    initial.mkdir()
    weights("zero")(initial)
    publish_initial(board, tmp_path / "versions", lambda: initial, LINEAGE, by="learner")
    return board


def test_a_published_version_says_where_its_bytes_are_and_what_they_are(
    started: MemoryVersionBoard, tmp_path: Path
) -> None:
    version = put(started, tmp_path / "versions", "one")
    folder = tmp_path / "versions" / "v000001"
    assert version == DraftVersion(
        number=1,
        parent=0,
        target="target",
        target_version="1",
        drafter="eagle3",
        weights_uri=folder.as_uri(),
        sha256=hashlib.sha256(b"one").hexdigest(),
        objective="committed",
        trained_on=("1-0", "9-0"),
        scores={"judged_accept_length": 2.5},
    )
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    row = started.read().rows[1]
    assert (row.version, row.state, row.why) == (version, VersionState.CANDIDATE, "better")


def test_a_version_says_that_it_is_a_layer_of_its_targets_checkpoint(
    started: MemoryVersionBoard, tmp_path: Path
) -> None:
    def write(folder: Path) -> None:
        weights("layer")(folder)
        (folder / "config.json").write_text('{"architectures": ["MiMoForCausalLM"]}')

    assert publish(started, tmp_path / "versions", write, LINEAGE, by="learner", why="better").drafter == "mtp"


def test_a_publication_that_fails_leaves_nothing(started: MemoryVersionBoard, tmp_path: Path) -> None:
    versions = tmp_path / "versions"

    def die(folder: Path) -> None:
        (folder / "model.safetensors").write_text("half")
        raise DiedError

    with pytest.raises(DiedError):
        publish(started, versions, die, LINEAGE, by="learner", why="")
    assert set(started.read().rows) == {0}
    assert not version_folder(versions, 1).exists()
    assert [path.name for path in versions.iterdir()] == ["v000000"]
    assert put(started, versions).number == 2


def test_what_a_killed_publisher_left_half_written_is_swept(started: MemoryVersionBoard, tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    half = versions / ".writing-v000001-4711"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_text("half")
    assert sweep(versions) == [half]
    assert [path.name for path in versions.iterdir()] == ["v000000"]


def test_a_publisher_that_dies_before_the_board_leaves_a_whole_folder_that_is_never_reused(
    started: MemoryVersionBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = tmp_path / "versions"

    def die(*_: object) -> None:
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(started, "register", die)
        with pytest.raises(DiedError):
            put(started, versions, "lost")
    assert set(started.read().rows) == {0}
    assert (versions / "v000001" / "model.safetensors").read_text() == "lost"
    version = put(started, versions, "kept")
    assert version.number == 2
    assert (versions / "v000002" / "model.safetensors").read_text() == "kept"


def test_folders_of_another_board_are_skipped(started: MemoryVersionBoard, tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    for number in (1, 2):
        write_folder(version_folder(versions, number), weights("theirs"))
    assert put(started, versions).number == 3
    assert (versions / "v000001" / "model.safetensors").read_text() == "theirs"


def test_a_number_that_an_operator_took_is_skipped(started: MemoryVersionBoard, tmp_path: Path) -> None:
    taken = made_version(1, 0)
    started.register(taken, "operator:ada", "manual")
    version = put(started, tmp_path / "versions")
    assert version.number == 2
    assert started.read().rows[1].version == taken
    assert not version_folder(tmp_path / "versions", 1).exists()


def test_a_board_that_lost_its_data_continues_above_the_folders_and_nothing_is_written_twice(
    started: MemoryVersionBoard, tmp_path: Path
) -> None:
    versions, written = tmp_path / "versions", []
    for number in (1, 7, 40):
        write_folder(version_folder(versions, number), weights("theirs"))

    def write(folder: Path) -> None:
        written.append(folder)
        weights("ours")(folder)

    numbers = [publish(started, versions, write, LINEAGE, by="learner", why="").number for _ in range(2)]
    assert (numbers, len(written)) == ([41, 42], 2)
    assert (versions / "v000040" / "model.safetensors").read_text() == "theirs"


def test_a_board_that_lost_only_its_counter_continues_above_its_rows(
    started: MemoryVersionBoard, tmp_path: Path
) -> None:
    taken = made_version(12, 0)
    started.register(taken, "operator:ada", "manual")
    assert put(started, tmp_path / "versions").number == 13


def test_a_board_with_no_free_number_is_a_conflict_that_says_so(
    started: MemoryVersionBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: object) -> None:
        raise BoardConflict("taken")

    monkeypatch.setattr(started, "register", taken)
    with pytest.raises(BoardConflict, match="got 5 numbers that were taken, the last one 5, expected a free one"):
        put(started, tmp_path / "versions")
    assert [path.name for path in (tmp_path / "versions").iterdir()] == ["v000000"]


def test_old_weights_are_removed_except_those_in_use_undecided_or_unknown(
    started: MemoryVersionBoard, tmp_path: Path
) -> None:
    versions = tmp_path / "versions"
    for number in range(1, 8):
        put(started, versions, f"{number}")
        if number != 3:
            state = VersionState.LIVE if number in {2, 4} else VersionState.REFUSED
            started.move(number, state, "learner", "why")
    write_folder(version_folder(versions, 999), weights("another board's"))
    elsewhere = tmp_path / "manual" / "v000008"
    write_folder(elsewhere, weights("8"))
    manual = made_version(8, 0, weights_uri=elsewhere.as_uri())
    started.register(manual, "operator:ada", "manual")
    before = started.read()
    assert (before.live, before.previous) == (4, 2)
    assert prune(versions, before, keep=2) == [0, 1, 5, 6]
    left = {path.name for path in versions.iterdir()}
    assert left == {f"v{number:06d}" for number in (2, 3, 4, 7, 999)}
    assert prune(versions, before, keep=2) == []
    assert started.read() == before
    assert elsewhere.is_dir()


def test_a_learner_that_dies_while_pruning_leaves_nothing_half_removed(
    started: MemoryVersionBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = tmp_path / "versions"
    for _ in range(3):
        started.move(put(started, versions).number, VersionState.LIVE, "learner", "why")

    def die(path: Path, **_: object) -> None:
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(disk.shutil, "rmtree", lambda path, ignore_errors=False: None if ignore_errors else die(path))
        with pytest.raises(DiedError):
            prune(versions, started.read(), keep=1)
    assert sorted(path.name for path in versions.glob("v*")) == ["v000001", "v000002", "v000003"]
    assert [path.name for path in sweep(versions)] == [".writing-v000000-gone"]


def test_the_initial_draft_is_version_0_and_live_with_the_bytes_the_server_has(
    started: MemoryVersionBoard, tmp_path: Path
) -> None:
    state = started.read()
    assert (state.live, state.previous, set(state.rows)) == (0, None, {0})
    assert state.rows[0].version.sha256 == hashlib.sha256(b"zero").hexdigest()
    assert state.rows[0].why == because(ReasonCode.INITIAL, draft=str(tmp_path / "initial"))
    assert publish_initial(started, tmp_path / "versions", lambda: tmp_path / "initial", LINEAGE, by="learner") is None


@pytest.mark.parametrize("step", ["next_number", "register", "move"])
def test_an_initial_draft_half_published_is_finished_by_the_next_learner(
    board: MemoryVersionBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    weights("zero")(tmp_path)

    def die(*_: object) -> None:
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(board, step, die)
        with pytest.raises(DiedError):
            publish_initial(board, tmp_path / "versions", lambda: tmp_path, LINEAGE, by="learner")
    publish_initial(board, tmp_path / "versions", lambda: tmp_path, LINEAGE, by="learner")
    assert (board.read().live, set(board.read().rows)) == (0, {0})
    assert put(board, tmp_path / "versions").number >= 1


def test_an_empty_board_over_another_boards_folders_is_refused(board: MemoryVersionBoard, tmp_path: Path) -> None:
    weights("new")(tmp_path)
    write_folder(version_folder(tmp_path / "versions", 0), weights("old"))
    with pytest.raises(ConfigError, match="move it away"):
        publish_initial(board, tmp_path / "versions", lambda: tmp_path, LINEAGE, by="learner")
    assert board.read().rows == {}


def test_a_text_is_replaced_whole_and_unfinished_files_are_swept(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", json.dumps([1]))
    write_text(tmp_path / "a.json", json.dumps([2]))
    (tmp_path / ".writing-b.json").write_text("half")
    assert sweep(tmp_path) == [tmp_path / ".writing-b.json"]
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "[2]")]
