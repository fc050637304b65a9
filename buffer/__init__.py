"""The post office: two letters travel through it, traces one way and draft versions the other.

In: DraftTrace from serving, DraftVersion and board events from learner and operators.
Out: the same letters, claimed, acked, replayed or watched; nothing is consumed by reading.
Everybody may enter. This room knows Redis (only in redis_*.py) and never torch, celery, mlflow or sglang.
"""
