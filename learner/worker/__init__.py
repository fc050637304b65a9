"""The Celery worker: its one task, its threads, and how it outlasts a Redis that refuses. Loads no torch by itself."""
