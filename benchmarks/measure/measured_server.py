"""A running server as benchmarks use it: its URL, buffer and board, and further drafts on the board to swap to."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from ...buffer.board.member_status import MemberStatus
from ...buffer.board.redis_board import RedisVersionBoard
from ...buffer.board.version import DraftVersion, VersionState
from ...buffer.board.version_board import VersionBoard
from ...buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ...buffer.config import BufferConfig
from ...buffer.redis_client import connect
from ...buffer.stream.redis_stream import RedisTraceBuffer
from ...buffer.stream.trace_buffer import TraceBuffer
from ...rig.deployment import LEARNER, REPLICA, SPECULATOR, LocalDeployment
from ...rig.models.corpus import CERTAIN_DOMAINS, load_corpus
from ...rig.models.target import TargetModel, load_tokenizer
from ...rig.prompts import Prompt, domain_prompts
from ...rig.reader import SpeculatorReader, drain_check

BY = "bench"

_runs = itertools.count()


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """Weights as the board names them."""

    uri: str
    digest: str

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The draft in `folder`; reads its whole weights file."""
        return cls(folder.absolute().as_uri(), sha256_of(folder / WEIGHTS_FILE))


@dataclass(frozen=True)
class MeasuredServer:
    """One running server. Version 0 on its board is the draft it was started with."""

    url: str
    buffer: TraceBuffer
    board: VersionBoard
    reader: SpeculatorReader

    def register(self, weights: DraftWeights, name: str) -> int:
        """Put a draft on the board; return its number."""
        number = self.board.next_number()
        row = DraftVersion(
            number=number,
            parent=None,
            target="t",
            target_version="0",
            drafter="eagle3",
            weights_uri=weights.uri,
            sha256=weights.digest,
            objective="none",
            trained_on=("", ""),
        )
        self.board.register(row, BY, name)
        return number

    def go_live(self, number: int) -> None:
        """Make a registered version live and wait until the server drafts with it."""
        self.board.move(number, VersionState.LIVE, BY, "measured next")
        wait_until(lambda: self.reader.replica_status().draft_version == number, f"version {number} to be swapped in")

    def wait_for_capture(self) -> None:
        """Block until the replica reports that it captures; exits when it does not."""
        wait_until(lambda: self.reader.replica_status().capture == "on", "the replica to capture")

    def drained(self) -> MemberStatus:
        """The replica's status once every trace of the requests answered so far has left the server.

        Exits when traces were captured that were neither delivered nor counted as dropped.
        """
        wait_until(drain_check(self.reader.replica_status), "traces to be delivered")
        status = self.reader.replica_status()
        traces = status.account
        if traces.captured != traces.delivered + sum(traces.dropped.values()):
            raise SystemExit(f"traces are unaccounted for: {status}")
        return status


def measured_server(local: LocalDeployment, drafts: Sequence[Path]) -> MeasuredServer:
    """Put `drafts` on the board; the first is version 0 and live, the one the server was started with."""
    client = connect(local.redis_url)
    config = BufferConfig(speculator=SPECULATOR)
    buffer = RedisTraceBuffer(client, config)
    board = RedisVersionBoard(client, config)
    server = MeasuredServer(local.server_url, buffer, board, SpeculatorReader(buffer, board, REPLICA, LEARNER))
    for draft in drafts:
        server.register(DraftWeights.of(draft), "random")
    board.move(0, VersionState.LIVE, BY, "served from the start")
    return server


def held_out_prompts(
    target: TargetModel, count: int, seed: int, domains: Sequence[str] = CERTAIN_DOMAINS
) -> list[Prompt]:
    """At least `count` prompts, the domains in turn, from text the target was not trained on."""
    held_out = {name: domain.held_out for name, domain in load_corpus(tuple(domains)).domains.items()}
    each = -(-count // len(held_out))
    prompts = domain_prompts(held_out, load_tokenizer(target.folder), each, seed)
    return [prompts[each * domain + number] for number in range(each) for domain in range(len(held_out))]


def under_new_ids(prompts: Sequence[Prompt], label: str = "run") -> list[Prompt]:
    """The same prompts with request ids that were never used before.

    Two seconds after a streamed answer SGLang aborts its request id, even if another request has it by then.
    """
    run = next(_runs)
    return [replace(prompt, request_id=f"{label}-{run}-{prompt.request_id}") for prompt in prompts]


def wait_until(holds: Callable[[], object], what: str, limit_s: float = 120.0) -> None:
    """Poll a condition of another process; exits after `limit_s`, naming what was waited for."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"waited {limit_s:.0f} s for {what}, and it did not happen")
        time.sleep(0.05)
