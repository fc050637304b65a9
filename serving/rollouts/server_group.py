"""ServerGroup: several rollout servers that do the same thing at the same time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from ...buffer.errors import RolloutFailed
from .completion import Completion, read_completion
from .server import RolloutServer
from .target_shapes import Shapes, checkpoint_shapes

_T = TypeVar("_T")


class ServerGroup:
    """Servers with the same target; threads may share it. Every method blocks until all servers have answered.

    Raises one RolloutFailed that names what went wrong on which of them.
    """

    def __init__(self, servers: Sequence[RolloutServer]) -> None:
        self._servers = list(servers)

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[Completion]:
        """One completion per prompt, in order; every server gets an equal share of neighbouring prompts."""
        work = {server: share for server, share in zip(self._servers, self._shares(prompts), strict=True) if share}
        answers = self._on(list(work), lambda server: server.generate(work[server], sampling))
        return [read_completion(answer) for some in answers for answer in some]

    def load_folder(self, folder: str, version: str) -> None:
        """Have every server load the weights file in `folder` while none computes."""
        with self._paused():
            self.everywhere(lambda server: server.load_folder(folder, version))

    def load_buckets(self, parts: Iterator[tuple[str, bool]], version: str) -> None:
        """Have every server load what `weights.buckets` yields while none computes."""
        ranks = dict(zip(self._servers, self.everywhere(RolloutServer.ranks), strict=True))
        with self._paused(), self._update():
            for bucket, is_last in parts:
                self.everywhere(partial(_load, bucket, ranks, version if is_last else None))

    def name_version(self, version: str) -> None:
        """Say on every server what its weights are called."""
        self.everywhere(lambda server: server.name_version(version))

    def require(self, version: str) -> None:
        """RolloutFailed, with the version of each server, unless all of them say that they serve `version`."""
        if any(found != version for found in self.everywhere(RolloutServer.version)):
            raise RolloutFailed(f"target version: {self.versions()}, expected {version} everywhere")

    def require_any(self, versions: AbstractSet[str]) -> None:
        """RolloutFailed, with the version of each server, unless all of them serve one of `versions`."""
        if not set(self.everywhere(RolloutServer.version)) <= versions:
            raise RolloutFailed(
                f"target version: {self.versions()}, expected {' or '.join(sorted(versions))}, which was pushed last; "
                "a server that was restarted has lost it: push again with sync_weights, or name what you pushed "
                "yourself with moved"
            )

    def shapes(self) -> Shapes:
        """Those of the target's tensors, as far as a server says where its checkpoint is and it can be read here."""
        paths = self.everywhere(RolloutServer.model_path)
        return next((found for path in paths if (found := checkpoint_shapes(path))), {})

    def versions(self) -> str:
        """Which server has which version, in words, as far as they answer."""
        return "got " + ", ".join(f"{_version_of(server)} on {server.url}" for server in self._servers)

    def everywhere(self, act: Callable[[RolloutServer], _T]) -> list[_T]:
        """What `act` returns for each server, in order; all are asked, whatever becomes of the others."""
        return self._on(self._servers, act)

    @staticmethod
    def _on(servers: Sequence[RolloutServer], act: Callable[[RolloutServer], _T]) -> list[_T]:
        with ThreadPoolExecutor(len(servers)) as pool:
            outcomes = list(pool.map(partial(_outcome, act), servers))
        faults = [str(outcome) for outcome in outcomes if isinstance(outcome, RolloutFailed)]
        if faults:
            raise RolloutFailed("; ".join(faults))
        return [outcome for outcome in outcomes if not isinstance(outcome, RolloutFailed)]

    def _shares(self, prompts: Sequence[Sequence[int]]) -> list[Sequence[Sequence[int]]]:
        bounds = [i * len(prompts) // len(self._servers) for i in range(len(self._servers) + 1)]
        return [prompts[begin:end] for begin, end in pairwise(bounds)]

    @contextmanager
    def _paused(self) -> Iterator[None]:
        with self._ended_by(RolloutServer.resume):
            self.everywhere(RolloutServer.pause)
            yield

    @contextmanager
    def _update(self) -> Iterator[None]:
        with self._ended_by(RolloutServer.end_update):
            self.everywhere(RolloutServer.begin_update)
            yield

    @contextmanager
    def _ended_by(self, act: Callable[[RolloutServer], object]) -> Iterator[None]:
        """`act` ends the body on every server; where the body failed, its fault is what is raised."""
        try:
            yield
        except BaseException:  # Ctrl-C too: servers left paused would answer nobody
            with suppress(RolloutFailed):
                self.everywhere(act)
            raise
        self.everywhere(act)


def _load(bucket: str, ranks: Mapping[RolloutServer, int], version: str | None, server: RolloutServer) -> None:
    server.load_bucket(bucket, ranks[server], version)


def _outcome(act: Callable[[RolloutServer], _T], server: RolloutServer) -> _T | RolloutFailed:
    try:
        return act(server)
    except RolloutFailed as fault:
        return fault


def _version_of(server: RolloutServer) -> str:
    try:
        return f"version {server.version()}"
    except RolloutFailed:
        return "no answer"
