"""What a decode step costs on a server, by batch size and draft steps: the file that PACELINE_PACING_COSTS names.

The server takes every number of draft steps in turn (PACELINE_PACING=sweep) and times itself, as it does for its own
policy: the median time from one verified step to the next. It captures nothing, and is a speculator of its own in
Redis, of which nothing is left at the end.
"""

import json
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final, NoReturn

import httpx
import numpy as np

from ...buffer.board.board_access import passing_board
from ...buffer.board.member_status import MemberStatus, PacingSaid
from ...buffer.board.version_board import VersionBoard
from ...buffer.errors import ConfigError, PacelineError
from ...buffer.settings.kinds import PacingName
from ...buffer.settings.sources import Settings
from ...buffer.settings.table import LOCAL_REDIS
from ..cpu_host.defaults import value_of
from ..supported_release import installed_release
from .own_server import OwnServer
from .signals import borrowed_signals

#: Loading a large target takes minutes, and so does capturing graphs for every length.
_START_S = 1800.0
_ANSWER_S = 600.0
#: A heartbeat so much younger than what it is to tell of was not on its way before; how long one is waited for.
_BEAT_S = 2.0
_BEAT_LIMIT_S = 60.0
_REPLICA: Final = "sweeping"
_SEED = 0
_PROMPT_TOKENS = 64
_NEW_TOKENS = 256
#: Ids that every vocabulary has, less those that begin and end a text.
_TOKEN_IDS = (3, 200)
#: Decode steps that an entry of the table is measured from, roughly.
_STEPS_PER_LENGTH = 40
#: Batches whose median is the time of a step without speculation.
_PLAIN_BATCHES = 3


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Milliseconds of one decode step."""

    cost_ms: Mapping[int, Sequence[float]]  # by batch size, then by draft steps from 0 on
    no_speculation_ms: Mapping[int, float]  # by batch size, of the server without its draft; empty if not measured

    def text(self) -> str:
        """Contents of the file."""
        rows = {str(batch): [round(ms, 3) for ms in row] for batch, row in self.cost_ms.items()}
        alone = {str(batch): round(ms, 3) for batch, ms in self.no_speculation_ms.items()}
        return json.dumps({"sglang": installed_release(), "cost_ms": rows, "no_speculation_ms": alone}, indent=2) + "\n"

    def lines(self) -> Iterator[str]:
        """The costs by batch size, and what a step with 0 drafts costs beside one without speculation."""
        for batch, row in self.cost_ms.items():
            yield f"batch {batch}: " + ", ".join(f"{k}: {ms:.1f}" for k, ms in enumerate(row)) + " ms"
            if alone := self.no_speculation_ms.get(batch):
                yield f"batch {batch}: {alone:.1f} ms without speculation; 0 drafts take {row[0] / alone:.3f} of that"


def measured_costs(
    flags: Sequence[str],
    settings: Settings,
    environ: Mapping[str, str],
    *,
    batches: Sequence[int],
    max_steps: int,
    is_plain_measured: bool,
    say: Callable[[str], None],
) -> MeasuredCosts:
    """Start a server with `flags`, measure it with 0 to `max_steps` drafts, and end it; `say` is told how far it is.

    With `is_plain_measured` the same server without its draft follows. Blocks for minutes; for the main thread, since
    a signal ends the server first. Raises ConfigError where the server does not pace or runs smaller batches,
    PacelineError where it does not start or answer, BufferUnavailable where Redis does not.
    """
    api_key = value_of(flags, "--api-key")
    speculator = f"pacing-costs-{uuid.uuid4().hex[:8]}"
    with passing_board(settings, speculator) as board, tempfile.TemporaryDirectory() as folder:
        lengths = Path(folder) / "lengths.json"
        lengths.write_text(json.dumps({"1": {"candidate_steps": list(range(max_steps + 1))}}), encoding="utf-8")
        adaptive = ["--speculative-adaptive", "--speculative-adaptive-config", str(lengths)]
        env = sweep_env(settings, environ, speculator)
        with _running([*flags, *adaptive], env) as url:
            _require_sweep(_pacing(board))
            for batch in batches:
                say(f"batch {batch}: measuring 0 to {max_steps} drafts")
                _sweep(url, api_key, batch, _STEPS_PER_LENGTH * (max_steps + 1))
            costs = table_of(_pacing(board).cost_ms, batches, max_steps)
        if not is_plain_measured:
            return MeasuredCosts(costs, {})
        with _running(without_speculation(flags), env) as url:
            say("measuring without speculation")
            return MeasuredCosts(costs, {batch: _plain_ms(url, api_key, batch) for batch in batches})


def sweep_env(settings: Settings, environ: Mapping[str, str], speculator: str) -> dict[str, str]:
    """The environment of a server that sweeps: all else that was set stays as it is."""
    return {
        **environ,
        "PACELINE_REDIS_URL": settings.value("REDIS_URL") or LOCAL_REDIS,
        "PACELINE_SPECULATOR": speculator,
        "PACELINE_REPLICA": _REPLICA,
        "PACELINE_PACING": PacingName.SWEEP.value,
        "PACELINE_SAMPLE_RATE": "0",
    }


def without_speculation(flags: Sequence[str]) -> list[str]:
    """`flags` less every --speculative flag and its values."""
    kept: list[str] = []
    is_left_out = False
    for word in flags:
        is_left_out = word.startswith("--speculative") or (is_left_out and not word.startswith("--"))
        kept += [] if is_left_out else [word]
    return kept


def table_of(
    cost_ms: Mapping[str, Mapping[str, float]], batches: Sequence[int], max_steps: int
) -> dict[int, list[float]]:
    """What a sweeping replica reports, for these batch sizes. ConfigError where it has not run one at every length."""
    lengths = [str(k) for k in range(max_steps + 1)]
    for batch in batches:
        if missing := [k for k in lengths if k not in cost_ms.get(str(batch), {})]:
            raise ConfigError(
                f"--batch {batch}: got no step of so many requests with {', '.join(missing)} drafts, expected some; "
                "the server runs fewer at a time (--max-running-requests, --max-total-tokens) or on several --dp-size"
            )
    return {batch: [cost_ms[str(batch)][k] for k in lengths] for batch in batches}


@contextmanager
def _running(flags: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """URL of a server that has answered."""
    with borrowed_signals((signal.SIGTERM, signal.SIGHUP), _end), socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that SGLang, which sets it too, may bind it
        server = OwnServer(flags, holder.getsockname()[1], env)
        try:
            server.wait_until_ready(_START_S)
            yield server.url
        finally:
            server.stop()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _pacing(board: VersionBoard) -> PacingSaid:
    """What the replica reports of its pacing in a heartbeat that began after this call."""
    asked_at = time.time()
    while time.time() < asked_at + _BEAT_LIMIT_S:
        said = board.heartbeats().get(f"replica:{_REPLICA}", MemberStatus())
        if said.at is not None and said.at > asked_at + _BEAT_S:
            return said.pacing or PacingSaid()
        time.sleep(0.1)
    raise PacelineError(f"replica {_REPLICA}: got no heartbeat in {_BEAT_LIMIT_S:.0f} s, expected one a second")


def _require_sweep(pacing: PacingSaid) -> None:
    if pacing.policy != PacingName.SWEEP or pacing.reason:
        why = pacing.reason or "no pacing on this server"
        raise ConfigError(f"pacing: got {why}, expected flags with which a server drafts and paces (docs/pacing.md)")


def _sweep(url: str, api_key: str | None, batch: int, steps: int) -> None:
    """Have `batch` requests run together, again and again, for `steps` decode steps at the least."""
    rng = np.random.default_rng((_SEED, batch))
    done = 0
    while done < steps:
        answers = _answers(url, api_key, _prompts(rng, batch), _NEW_TOKENS)
        done += max(min(int(answer["meta_info"]["spec_verify_ct"]) for answer in answers), 1)


def _plain_ms(url: str, api_key: str | None, batch: int) -> float:
    """Milliseconds of a step without speculation: what further tokens add to the time of an answer."""
    rng = np.random.default_rng((_SEED, batch))
    found = []
    for _ in range(_PLAIN_BATCHES + 1):  # the first one pays for what later ones find ready
        prompts = _prompts(rng, batch)
        spent_s = []
        for new_tokens in (1, _NEW_TOKENS + 1):
            began_s = time.monotonic()
            _answers(url, api_key, prompts, new_tokens)
            spent_s.append(time.monotonic() - began_s)
        found.append(1e3 * (spent_s[1] - spent_s[0]) / _NEW_TOKENS)
    return median(found[1:])


def _prompts(rng: np.random.Generator, batch: int) -> list[list[int]]:
    prompts: list[list[int]] = rng.integers(*_TOKEN_IDS, (batch, _PROMPT_TOKENS)).tolist()
    return prompts


def _answers(url: str, api_key: str | None, prompts: list[list[int]], new_tokens: int) -> list[dict[str, Any]]:
    """SGLang's answers to prompts that it is sent at once. PacelineError where it refuses or is gone."""
    sampling = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": new_tokens}
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    body = {"input_ids": prompts, "sampling_params": sampling}
    try:
        reply = httpx.post(f"{url}/generate", json=body, headers=headers, timeout=_ANSWER_S, trust_env=False)
        reply.raise_for_status()
    except httpx.HTTPError as fault:
        raise PacelineError(f"{url}/generate: got {fault!r}, expected {len(prompts)} answers; see its output") from None
    answers: list[dict[str, Any]] = reply.json()
    return answers
