"""paceline keeps the draft model of a speculative-decoding server on the pace of its traffic.

An SGLang server streams draft traces (accepted and rejected) into a Redis buffer, Celery learners retrain
the draft from them, and every new version is judged, tracked in MLflow and swapped into the running server.
Rooms: buffer (the letters and the post office), policies (pure judgement), serving, learner, dashboards.
A trainer makes its rollouts through `Rollouts`, which is loaded when it is first named.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from .serving.rollouts.rollouts import Rollouts

__version__ = "0.1.0"
__all__ = ["Rollouts", "__version__"]


def __getattr__(name: str) -> object:
    if name != "Rollouts":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .serving.rollouts.rollouts import Rollouts  # noqa: PLC0415 - httpx, which few processes need

    return Rollouts


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
