"""One command that runs the whole loop on one machine without a GPU.

In: options of the command line. Out: a running Redis, MLflow store, SGLang server and Celery worker, real
traffic through them, a live view, and a report; nothing is left running.
"""
