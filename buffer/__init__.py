"""The buffer: traces travel through it from serving to learners, draft versions from learners to serving.

In: DraftTrace from serving, DraftVersion and board events from learners and operators.
Out: the same, claimed, acked, replayed or followed; reading consumes nothing.
Every other package may import this one. It knows Redis (only in redis_*.py) and never torch, celery, mlflow or sglang.
"""
