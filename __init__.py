"""paceline keeps the draft model of a speculative-decoding server on the pace of its traffic.

An SGLang server streams draft traces (accepted and rejected) into a Redis buffer, Celery learners retrain
the draft from them, and every new version is judged, tracked in MLflow and swapped into the running server.
Rooms: buffer (the letters and the post office), policies (pure judgement), serving, learner, dashboards.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
