"""The buffer: traces travel through it from serving to learners, draft versions from learners to serving.

In: DraftTrace from serving, DraftVersion and board events from learners and operators.
Out: the same, claimed, acked, replayed or followed; reading consumes nothing.
Every other package may import this one. Redis is known to its files named redis_*.py alone; torch, celery, mlflow and
sglang to none of them.
"""
