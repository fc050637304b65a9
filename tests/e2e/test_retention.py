"""A string planted in prompts, and a search of all files that Redis, SGLang, its courier and a learner have written.

With PACELINE_RETENTION=memory none holds its tokens, their hidden states or the digest of the prompt; else some do.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from paceline.rig.models.target import load_tokenizer
from paceline.rig.processes import descendants
from paceline.rig.services import learner_service
from waiting import until

pytestmark = pytest.mark.e2e

PLANTED = "def open_the_safe(combination): return combination == 'seven-three-zero-one'"
REQUESTS = 24
ZSTD = zstandard.FRAME_HEADER
NO_DISK = ("/dev/shm", "/memfd:", "/proc")


def contents(raw: bytes) -> Iterator[bytes]:
    """A file as it is, and what each zstd frame in it unpacks to: so traces are packed."""
    yield raw
    at = raw.find(ZSTD)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(memoryview(raw)[at:])
        at = raw.find(ZSTD, at + len(ZSTD))


def marks_of_tokens(ids: np.ndarray, text: str) -> dict[str, bytes]:
    """What the planted string would be in a file."""
    numbers = ids.tolist()
    return {
        "text": text.encode(),
        "int16": ids.astype("<i2").tobytes(),
        "int32": ids.astype("<i4").tobytes(),
        "int64": ids.astype("<i8").tobytes(),
        "msgpack": b"".join(map(msgspec.msgpack.encode, numbers)),
        "a list": ", ".join(map(str, numbers)).encode(),
        "a dense list": ",".join(map(str, numbers)).encode(),
        "lines": "\n".join(map(str, numbers)).encode(),
    }


def search(files: dict[Path, str], marks: dict[str, bytes]) -> dict[str, set[str]]:
    """Mark -> what the files are called that hold it; `files` gives each path its name."""
    found = defaultdict(set)
    for path, name in files.items():
        with suppress(FileNotFoundError):  # it was there a moment ago
            for content in contents(path.read_bytes()):
                for mark, wanted in marks.items():
                    if wanted in content:
                        found[mark].add(name)
    return dict(found)


def written(folder: Path, redis_folder: Path) -> dict[Path, str]:
    """Every file of both folders, and every other one that a process of this test holds open to write to."""
    files = {path: path.name for path in folder.rglob("*") if path.is_file()}
    for process in descendants(os.getpid()):
        for handle in Path(f"/proc/{process.pid}/fd").glob("*"):
            with suppress(OSError, ValueError):
                flags = int((handle.parents[1] / "fdinfo" / handle.name).read_text().split()[3], 8)
                target = str(handle.readlink())
                if flags & os.O_ACCMODE and handle.is_file() and not target.startswith(NO_DISK):
                    files[handle] = Path(target).name
    return files | {path: "redis" for path in redis_folder.rglob("*") if path.is_file()}


def test_the_search_finds_each_mark_plain_and_packed(tmp_path):
    ids = np.arange(7, 30, dtype=np.int32) * 11
    marks = marks_of_tokens(ids, PLANTED)
    for name, mark in marks.items():
        (tmp_path / f"{name}, plain").write_bytes(b"before" + mark + b"after")
        packed = zstandard.ZstdCompressor().compress(b"before" + mark * 3)
        (tmp_path / f"{name}, packed").write_bytes(b"before" + packed + b"after")
    (tmp_path / "else").write_bytes(ids[:-1].tobytes() + b"(\xb5/\xfd no frame")
    found = search({path: path.name for path in tmp_path.iterdir()}, marks)
    assert found == {name: {f"{name}, plain", f"{name}, packed"} for name in marks}


@contextmanager
def learner(rig, folder, env):
    settings = {
        "PACELINE_REDIS_URL": rig.redis_url,
        "PACELINE_SPECULATOR": "e2e",
        "PACELINE_TARGET": "e2e-target",
        "PACELINE_TARGET_PATH": str(rig.target),
        "PACELINE_DRAFT": str(rig.draft),
        "PACELINE_DATA_DIR": str(folder / "data"),
        "PACELINE_LEARNER": "e2e-learner",
        "PACELINE_LEARN": "always",
        "PACELINE_MIN_NEW_TRACES": str(REQUESTS),
        "PACELINE_HOLDOUT_SHARE": "0.25",
        "PACELINE_ROUND_INTERVAL_S": "1.0",
        "OMP_NUM_THREADS": "1",
    }
    with learner_service(log=folder / "learner.log", env=settings | env) as service:
        yield service


def rounds_of_the_learner(rig):
    said = rig.board.heartbeats().get("learner:e2e-learner")
    return said.life.rounds if said and said.life else 0


def serve(rig, name):
    # The string comes last: a beginning that requests share is served from a cache, and not captured again.
    texts = [f"{name}: {text[:90]}\n{PLANTED}" for text in rig.texts[:REQUESTS]]
    rig.generate_all([{"rid": f"{name}-{i}", "text": text} for i, text in enumerate(texts)])
    return rig.drained()


def planted_in(rig, rid):
    """What to look for: the ids of the middle of the string, some hidden states of it, and the prompt's digest."""
    (trace, *_) = rig.traces_of(rid)
    decode = load_tokenizer(rig.target).decode
    at = next(at for at in range(len(trace.tokens)) if decode(trace.tokens[at : at + 12].tolist()) in PLANTED)
    assert at + 12 <= trace.context_len
    return {
        **marks_of_tokens(trace.tokens[at : at + 12], PLANTED),
        "features": trace.features[at].tobytes(),
        "digest": trace.prompt.encode(),
    }


@pytest.mark.servers
@pytest.mark.guarantee("zero-retention")
@pytest.mark.parametrize("mode", ["disk", "memory"])
def test_a_planted_string_is_in_a_file_of_redis_unless_nothing_may_reach_a_disk(start_rig, models, tmp_path, mode):
    env = {
        "PACELINE_RETENTION": mode, "TMPDIR": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path),
    }  # fmt: skip
    with start_rig(models, tmp_path, [], env) as rig:
        redis_folder = rig.redis.log.parent
        if mode == "memory":  # Redis has an append-only file at first
            assert serve(rig, "refused").account.dropped == {"retention": REQUESTS}
            assert rig.buffer.counts().delivered == 0
            rig.buffer._client.config_set("appendonly", "no")
        serve(rig, "planted")
        assert rig.buffer.counts().delivered == REQUESTS
        marks = planted_in(rig, "planted-0")
        with learner(rig, tmp_path, env):
            until(lambda: rounds_of_the_learner(rig) == 1, "a learning round")
            files = written(tmp_path, redis_folder)
            found = search(files, marks)
        later = search(written(tmp_path, redis_folder), marks)
    expected = {"int32": {"redis"}, "features": {"redis"}, "digest": {"redis", "notes.json"}}
    assert found == later == (expected if mode == "disk" else {})
    wanted = {"sglang.log", "learner.log", "redis", "notes.json", "trainer.pt", "model.safetensors", "mlflow.db"}
    assert wanted <= {*files.values()}
