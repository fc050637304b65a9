"""A learner and two servers that share no disk, and a real S3 server between them, which asks for credentials."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from paceline.buffer.board.member_status import SwapSaid
from paceline.buffer.board.reason import ReasonCode
from paceline.buffer.board.version import VersionState
from paceline.buffer.board.version_store import VersionStore
from paceline.buffer.errors import ConfigError, StoreUnavailable
from paceline.buffer.finding import Level
from paceline.dashboards.doctor.board_side import store as store_finding
from paceline.dashboards.doctor.board_side import weights as weights_finding
from paceline.learner.delivery.publisher import Lineage, publish, publish_initial
from paceline.learner.state import checkpoint
from paceline.learner.state.checkpoint import LearnerNotes
from paceline.learner.state.stored_checkpoints import StoredCheckpoints
from paceline.serving.swap.fetched_weights import FetchedWeights
from paceline.serving.swap.swapper import Swapper
from s3fs import S3FileSystem
from twins.memory_board import MemoryVersionBoard

#: Acts that need no credential: those by which the fixture makes a user, its keys and a bucket.
FREE_ACTS = 5
SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
server._thread.join()
"""
ALL = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
LINEAGE = Lineage(parent=0, target="target", target_version="1", objective="soft", trained_on=("1-0", "9-0"))


@dataclass
class S3:
    """An S3 server, its bucket `drafts`, and who may use it."""

    clients: Any  # makes a client of a service, with a key that stays valid
    key: str  # that the environment has

    def keys(self, prefix: str) -> list[str]:
        """Of the bucket's objects."""
        found = self.clients("s3").list_objects_v2(Bucket="drafts", Prefix=prefix)
        return [each["Key"] for each in found.get("Contents", [])]

    def expire(self) -> None:
        """The key in the environment is valid no longer."""
        self.clients("iam").delete_access_key(UserName="learner", AccessKeyId=self.key)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("INITIAL_NO_AUTH_ACTION_COUNT", str(FREE_ACTS))
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            host, port = process.stdout.readline().split()
            url = f"http://{host}:{port}"
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)

            def client(service: str, key: str = "nobody", secret: str = "nobody") -> Any:
                return boto3.client(service, endpoint_url=url, aws_access_key_id=key, aws_secret_access_key=secret)

            iam = client("iam")
            iam.create_user(UserName="learner")
            iam.put_user_policy(UserName="learner", PolicyName="all", PolicyDocument=ALL)
            own, other = (iam.create_access_key(UserName="learner")["AccessKey"] for _ in range(2))
            client("s3").create_bucket(Bucket="drafts")
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", own["AccessKeyId"])
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", own["SecretAccessKey"])
            S3FileSystem.clear_instance_cache()
            yield S3(
                lambda service: client(service, other["AccessKeyId"], other["SecretAccessKey"]), own["AccessKeyId"]
            )
        finally:
            S3FileSystem.clear_instance_cache()
            process.kill()


class Server:
    """A server with a disk of its own, whose engine takes whatever file it is given."""

    def __init__(self, name: str, disk: Path, board: MemoryVersionBoard, store: VersionStore) -> None:
        self.draft_version = 0
        self.weights = b""
        self.cache = disk / "versions"
        self._fetched = FetchedWeights(disk, 1 << 20)
        self.swapper = Swapper(board, self, replica=name, before_canary=lambda: None, store=store)

    def swap(self, number: int, file: str, sha256: str, is_wanted: Any) -> SwapSaid:
        self.weights = self._fetched.file(file, sha256).read_bytes()
        assert is_wanted()
        self.draft_version = number
        return SwapSaid(number=number, commit_ms=1.0, stage_ms=1.0, running=0, at=1.0)

    def take_late(self) -> list[SwapSaid]:
        return []


def draft(content: bytes) -> Any:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(content)
        (folder / "config.json").write_text("{}")

    return write


@pytest.mark.guarantee("store-away")
def test_drafts_reach_two_servers_by_s3_and_what_is_wrong_with_it_is_told(s3: S3, tmp_path: Path) -> None:
    store = VersionStore("s3://drafts/default")
    board = MemoryVersionBoard()
    versions = tmp_path / "learner" / "versions" / "default"
    (tmp_path / "initial").mkdir()
    draft(b"initial")(tmp_path / "initial")
    servers = [Server(name, tmp_path / name, board, store) for name in ("a", "b")]

    def publish_live(content: bytes) -> int:
        made = publish(board, versions, draft(content), LINEAGE, by="learner", why="better", store=store)
        board.move(made.number, VersionState.LIVE, "learner", "better")
        return made.number

    assert store_finding(store).level is Level.NOTE
    publish_initial(board, versions, lambda: tmp_path / "initial", LINEAGE, by="learner", store=store)
    assert publish_live(b"better") == 1
    for server in servers:
        server.swapper.turn()
    assert [(server.draft_version, server.weights) for server in servers] == [(1, b"better")] * 2
    assert [len([*server.cache.glob("*/model.safetensors")]) for server in servers] == [1, 1]
    assert store_finding(store).sentence == "s3://drafts/default can be listed; versions there: 2"
    found = weights_finding(board.read(), store)
    assert (found.level, "can be read at s3://drafts/default/v000001-" in found.sentence) == (Level.OK, True)

    number = publish_live(b"best")
    key = board.read().rows[number].version.weights_uri.removeprefix("s3://drafts/") + "/model.safetensors"
    s3.clients("s3").put_object(Bucket="drafts", Key=key, Body=b"worst")
    servers[0].swapper.turn()
    row = board.read().rows[number]
    assert (row.state, row.why.code, servers[0].draft_version) == (
        VersionState.ROLLED_BACK,
        ReasonCode.WEIGHTS_REFUSED,
        1,
    )
    assert "(the file was changed)" in row.why.figures["fault"]

    number = publish_live(b"best after all")
    s3.expire()
    with pytest.raises(StoreUnavailable, match="expected to write it; check credentials") as refused:
        publish_live(b"better still")
    assert s3.key not in str(refused.value)
    servers[1].swapper.turn()
    row = board.read().rows[number]
    assert (row.state, row.why.code, servers[1].draft_version) == (
        VersionState.ROLLED_BACK,
        ReasonCode.WEIGHTS_REFUSED,
        1,
    )
    assert "expected published weights; check credentials" in row.why.figures["fault"]
    found = store_finding(store)
    assert (found.level, "expected to list it; check credentials" in found.sentence) == (Level.WRONG, True)


@pytest.mark.guarantee("checkpoints-travel")
def test_checkpoints_come_and_go_by_s3(s3: S3, tmp_path: Path) -> None:
    board = MemoryVersionBoard()
    here, there = (tmp_path / name for name in ("here", "there"))
    stored = StoredCheckpoints("s3://drafts/_checkpoints/default", kept=1)
    assert not stored.adopt_newer(there, board.read())
    for number in (1, 2, 3):
        notes = LearnerNotes(rounds_trained=number)
        checkpoint.save(here, notes, lambda file, text=f"trainer {number}": file.write_text(text), kept=1)
        stored.put(here, board.read())
    names = {key.split("/")[2] for key in s3.keys("_checkpoints/")}
    assert names == {"round-00000002", "round-00000003"}
    assert stored.adopt_newer(there, board.read())
    found, trainer = checkpoint.newest(there)
    assert (found.rounds_trained, trainer.read_text()) == (3, "trainer 3")
    assert not stored.adopt_newer(there, board.read())
    assert stored.find(2, tmp_path / "reproduced")[1].read_text() == "trainer 2"
    (tampered,) = (key for key in s3.keys("_checkpoints/default/round-00000003/trainer-"))
    s3.clients("s3").put_object(Bucket="drafts", Key=tampered, Body=b"another")
    with pytest.raises(ConfigError, match="it was changed"):
        stored.adopt_newer(tmp_path / "third", board.read())
    s3.expire()
    with pytest.raises(StoreUnavailable, match="check credentials"):
        stored.put(here, board.read())
