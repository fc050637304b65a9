"""Celery's side of learning: when a learning round starts, where it runs, and what happens when its worker dies.

`celery -A paceline.learner.app worker` and `run_worker` start the same worker; both read the environment once.
"""

import logging
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from celery import Celery
from celery.schedules import schedule
from celery.utils.nodenames import default_nodename, host_format

from ..buffer import retention
from ..buffer.board.redis_board import RedisVersionBoard
from ..buffer.redis_client import broker_options, broker_url, connect, tls_settings
from ..buffer.stream.redis_stream import RedisTraceBuffer
from .config import LearnerConfig, from_env
from .disk import require_writable
from .worker.lasting_worker import add_beat, outlast_refusals
from .worker.tasks import LEARN_ROUND, add_learn_round, heartbeat_of
from .worker.threads import add_threads

#: Celery's loggers of messages received, tasks done and messages sent by the beat: three lines a learning round.
BOOKKEEPING: Final = ("celery.worker.strategy", "celery.app.trace", "celery.beat")

#: A learning round is not started a second time before this.
_LONGEST_ROUND_S = 3600


def make_app(config: LearnerConfig) -> Celery:
    """The Celery app of one speculator: its queue, its one task and its beat. Connects to nothing."""
    tls = tls_settings(config.redis_url, config.redis_ca)  # left to itself, kombu verifies no certificate
    app = Celery("paceline", broker=broker_url(config.redis_url), broker_use_ssl=tls or None, set_as_current=False)
    app.conf.update(
        # JSON only: a broker that somebody else can write to must not run code here.
        task_serializer="json",
        result_serializer="json",
        event_serializer="json",
        accept_content=["json"],
        # The message stays in Redis until the learning round ended, and goes back when its worker was killed.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        # A message that is not acked within this goes to another worker; with late acks it must exceed the longest
        # learning round, or a long one starts a second time (to find the lease held, and end at once).
        broker_transport_options={
            "visibility_timeout": _LONGEST_ROUND_S,
            **broker_options(config.redis_url, config.redis_ca),
        },
        # What a learning round did is on the board and in MLflow.
        result_backend=None,
        task_ignore_result=True,
        # One process with the GPU; a fork would have to share its context.
        worker_pool="solo",
        worker_concurrency=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        task_default_queue=config.queue,
        task_create_missing_queues=True,
        timezone="UTC",
        beat_schedule={"learn": _every_round(config)},
    )
    outlast_refusals(app, lambda fault: heartbeat_of(config).stall(fault))
    add_learn_round(app, config)
    add_threads(app, config)
    return app


def run_worker(config: LearnerConfig, *, beat: bool) -> None:
    """Work until a signal stops the process; with `beat`, also start a learning round every `round_interval_s`.

    Exactly one worker of a speculator should beat. Raises at once, saying what to do, BufferUnavailable when Redis
    does not answer and ConfigError when target or draft cannot be learned with. When Redis goes away later, or refuses
    what is asked of it, the worker waits until that is over. SystemExit, not with 0, when it ends by itself.
    """
    check_start(config)
    hush_bookkeeping()
    app = make_app(config)
    if beat:
        add_beat(app)
    worker = app.Worker(
        hostname=host_format(default_nodename(f"{config.name}@%h")),
        queues=[config.queue],
        pool="solo",
        concurrency=1,
        without_gossip=True,
        without_mingle=True,
        loglevel="INFO",
    )
    worker.start()
    if worker.exitcode:
        raise SystemExit(worker.exitcode)


def check_start(config: LearnerConfig) -> None:
    """Raise, saying what to do, where no worker could work: see run_worker. Blocks on Redis and disk."""
    with connect(config.redis_url, config.redis_ca) as client:
        retention.begin(client, config.buffer)
        RedisTraceBuffer(client, config.buffer).require_key()
        _check_models(config, RedisVersionBoard(client, config.buffer))
    require_writable(config.data_dir, "PACELINE_DATA_DIR")


def hush_bookkeeping() -> None:
    """Leave out what these loggers say at INFO; their warnings and errors, such as a task that failed, stay."""
    for name in BOOKKEEPING:
        logging.getLogger(name).setLevel(logging.WARNING)


def _check_models(config: LearnerConfig, board: RedisVersionBoard) -> None:
    from .recovery import check_models  # noqa: PLC0415 - torch, which a lone beat does not load

    check_models(config, board)


def _every_round(config: LearnerConfig) -> dict[str, Any]:
    # A message that nobody took within an interval expires, so that none pile up during a slow learning round.
    options = {"queue": config.queue, "expires": config.round_interval_s}
    every = schedule(timedelta(seconds=config.round_interval_s), nowfun=_steady_now)
    return {"task": LEARN_ROUND, "schedule": every, "options": options}


_BEGAN = datetime.now(UTC)
_BEGAN_S = time.monotonic()


def _steady_now() -> datetime:
    """A time of which only differences matter, and which setting the clock does not change.

    By the wall clock, a beat would pause for as long as that was set back.
    """
    return _BEGAN + timedelta(seconds=time.monotonic() - _BEGAN_S)


@cache
def _app_from_env() -> Celery:
    return make_app(from_env())


def __getattr__(name: str) -> Any:
    """`app`, which the celery command looks for; made on first use, so that importing reads no environment."""
    if name in {"app", "celery"}:
        return _app_from_env()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
