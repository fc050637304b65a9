"""Rollouts: the trainer's door to speculating SGLang servers."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...buffer.errors import BufferUnavailable, ConfigError, PacelineError, RolloutFailed
from ..cpu_host.defaults import names_given
from ..launch.own_server import OwnServer
from .completion import Completion
from .config import from_env, server_env
from .draft_in_use import DraftLink
from .server import RolloutServer
from .server_group import ServerGroup
from .step_figures import draft_lag, rollout_figures
from .target_shapes import checked
from .trl import RolloutFunc, TrlRollouts

if TYPE_CHECKING:
    from .weights import NamedTensors

_log = logging.getLogger(__name__)

#: A bucket of weights in a request: large enough that few are needed, small beside the memory of a host.
BUCKET_BYTES = 512 << 20
#: Flags that `Rollouts.serve` gives itself.
_OURS = ("--model-path", "--speculative-draft-model-path", "--host", "--port")


class Rollouts:
    """One or several SGLang servers with the same target, as one; a context manager. Threads may share it.

    Attaches to running servers, each started with `paceline serve` and the same PACELINE_REDIS_URL. Without that
    setting (or `redis_url`), rollouts work, but nothing is known of drafts, and `learn` raises ConfigError. Raises
    RolloutFailed when a server does not answer, BufferUnavailable when Redis does not. `api_key` is what the servers
    were started with (--api-key); `timeout_s` bounds one generation, and one load of weights.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        redis_url: str | None = None,
        speculator: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 3600.0,
    ) -> None:
        named = [urls] if isinstance(urls, str) else list(urls)
        if not named or not all(isinstance(url, str) and url.startswith(("http://", "https://")) for url in named):
            raise ConfigError(f"urls: got {urls!r}, expected at least one, as http://host:port")
        config = from_env(redis_url, speculator)
        self._servers = ServerGroup([RolloutServer(url, timeout_s, api_key) for url in named])
        with ExitStack() as opened:
            opened.callback(self._servers.close)
            self._shapes = self._servers.shapes()
            self._link = DraftLink(config) if config.redis_url else None
            if self._link is not None:
                opened.callback(self._link.close)
            self._opened = opened.pop_all()  # closed by `close`, or here when something was not there
        self._pushed: frozenset[str] = frozenset()  # what the servers may serve; two while, or after, a push failed
        self._served: list[str] = []  # target versions in force since this object was made, oldest first
        self._figures: dict[str, float] = {}
        self._sync_s: float | None = None  # of weights pushed since the last rollouts

    @classmethod
    def serve(
        cls,
        model: str | Path,
        draft: str | Path,
        *flags: str,
        port: int = 30000,
        redis_url: str | None = None,
        speculator: str | None = None,
        start_limit_s: float = 1800.0,
        timeout_s: float = 3600.0,
    ) -> Self:
        """Start one server, as `paceline serve` does with `flags`, and attach to it; leaving the context ends it.

        Drafts are EAGLE-3 unless `flags` name another algorithm. Blocks until the server has generated a token.
        RolloutFailed when it has not after `start_limit_s`, ConfigError for flags that cannot be served with.
        """
        env = server_env(from_env(redis_url, speculator))
        own = OwnServer(_serve_flags(model, draft, flags), port, env)
        try:
            _wait_until_ready(own, start_limit_s)
            made = cls(own.url, redis_url=redis_url, speculator=speculator, timeout_s=timeout_s)
        except BaseException:  # Ctrl-C included: no server may be left running
            own.stop()
            raise
        made._opened.callback(own.stop)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, and end the server if `serve` started it; a second call does nothing."""
        self._opened.close()

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, temperature: float = 1.0, **sampling: Any
    ) -> list[Completion]:
        """One completion per prompt (its token ids), in order; blocks until the last is there.

        `sampling` are further sampling parameters of SGLang. Several servers get equal shares of neighbouring prompts.
        RolloutFailed, before anything is generated, when a server does not serve the weights pushed last: one that was
        restarted serves those it was started with, until `sync_weights` has pushed again.
        """
        _refuse_unfit(prompts)
        if self._pushed:
            self._servers.require_any(self._pushed)
        began_s = time.perf_counter()
        parameters = {"max_new_tokens": max_new_tokens, "temperature": temperature, **sampling}
        done = self._servers.generate(prompts, parameters)
        self._note(done, time.perf_counter() - began_s)
        return done

    def sync_weights(
        self,
        named: "NamedTensors",
        version: int | str,
        *,
        folder: Path | str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> float:
        """Make `named` the target's weights everywhere, under `version`; return the seconds it took, which block.

        Names are those of the target's checkpoint. With a `folder` that every server sees under the same path, they
        read a safetensors file there; else the tensors travel in requests, `bucket_bytes` at a time. Requests in flight
        are retracted and go on with the new weights; their target versions say from which token. RolloutFailed, naming
        the version of each server, unless all of them have `version` afterwards. ConfigError for a tensor of another
        shape than in the target's checkpoint, which would end a server, where that checkpoint can be read here.
        """
        from .weights import buckets, write_folder  # noqa: PLC0415 - loads torch

        began_s = time.perf_counter()
        name = str(version)
        named = checked(named, self._shapes)
        self._pushed = self._pushed | {name} if self._pushed else self._pushed
        try:
            if folder is None:
                self._servers.load_buckets(buckets(named, bucket_bytes), name)
            else:
                self._servers.load_folder(write_folder(named, Path(folder)), name)
        except RolloutFailed as fault:
            raise RolloutFailed(f"{fault}; target version: {self._servers.versions()}, expected {name}") from fault
        self._moved(name)
        self._sync_s = time.perf_counter() - began_s
        return self._sync_s

    def moved(self, version: int | str) -> None:
        """Name the weights that a trainer has pushed by itself, by NCCL or IPC, on every server; raises as above."""
        self._servers.name_version(str(version))
        self._moved(str(version))

    def learn(self) -> None:
        """Ask for one learning round now, however few traces wait, for while the servers are idle; returns at once."""
        if self._link is None:
            raise ConfigError("learn(): got no Redis, expected PACELINE_REDIS_URL or Rollouts(redis_url=...)")
        self._link.ask_for_round()

    def metrics(self) -> dict[str, float]:
        """Figures of the last `generate`, as `rollout/...`; what is not known is left out. See docs/rl.md."""
        return dict(self._figures)

    def for_trl(
        self,
        *,
        folder: Path | str | None = None,
        weights: "Callable[[Any], NamedTensors] | None" = None,
        learn: bool = False,
        run: str | None = None,
        **sampling: Any,
    ) -> RolloutFunc:
        """A `rollout_func` for TRL's GRPOTrainer: pushes the weights of every step, generates, and logs the figures.

        Temperature, top-p, top-k, min-p, repetition penalty and length are those of GRPOConfig; `sampling` are others
        of SGLang's. `folder` as in `sync_weights`. `weights(trainer)` gives the tensors by name in place of the model's
        state_dict: every process calls it, the main one reads them. With `learn`, every call asks for a learning round.
        Versions are named by `run` and step, as "run-3fa2c1+7": by default no other start of a trainer has that run's
        name. With "" they are step numbers, for a server and a learner that no other run has or will have.
        """
        if learn and self._link is None:
            raise ConfigError("for_trl(learn=True): got no Redis, expected PACELINE_REDIS_URL or redis_url")
        return TrlRollouts(
            self,
            folder=None if folder is None else Path(folder),
            weights=weights,
            learn=learn,
            run=run,
            sampling=sampling,
        )

    def _moved(self, version: str) -> None:
        self._servers.require(version)
        self._pushed = frozenset({version})
        if self._served[-1:] != [version]:
            self._served.append(version)

    def _note(self, done: Sequence[Completion], seconds: float) -> None:
        self._figures = rollout_figures(done, seconds)
        if self._sync_s is not None:
            self._figures["rollout/sync_seconds"] = self._sync_s
            self._sync_s = None
        try:
            draft = self._link.in_use() if self._link is not None else None
        except BufferUnavailable as fault:  # two figures less; the rollouts are what counts
            _log.warning("which draft is in use is not known: %s", fault)
            draft = None
        if draft is not None:
            self._figures["rollout/draft_version"] = draft.number
            lag = None if draft.target_version is None else draft_lag(draft.target_version, self._served)
            self._figures |= {} if lag is None else {"rollout/draft_lag": lag}


def _serve_flags(model: str | Path, draft: str | Path, flags: Sequence[str]) -> list[str]:
    """SGLang's flags: the target, the draft as EAGLE-3 unless `flags` name another algorithm, then `flags`."""
    if given := sorted(set(_OURS) & set(names_given(flags))):
        raise ConfigError(f"flags of the server: got {', '.join(given)}, expected others; serve() gives these itself")
    drafts = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(draft)]
    return ["--model-path", str(model), *drafts, *flags]


def _wait_until_ready(own: OwnServer, limit_s: float) -> None:
    try:
        own.wait_until_ready(limit_s)
    except PacelineError as fault:
        raise RolloutFailed(str(fault)) from None


def _refuse_unfit(prompts: Sequence[Sequence[int]]) -> None:
    if not prompts:
        raise ConfigError("prompts: got none, expected at least one")
    for i, ids in enumerate(prompts):
        if isinstance(ids, str) or not ids or not all(isinstance(token, int) for token in ids):
            raise ConfigError(f"prompt {i}: got {ids!r:.80}, expected token ids, at least one")
