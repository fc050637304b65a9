"""Courier process, its only thread: messages from the scheduler become traces, and traces reach Redis.

In: messages of one scheduler process. Out: DraftTrace in the buffer, the replica's heartbeat, counts of what
was dropped.
Runs as `python -m paceline.serving.courier`, started by serving/capture. No torch.
"""
