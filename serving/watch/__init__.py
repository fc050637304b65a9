"""Courier process, its only thread: monitors drafts and capture by the verify rounds as they are served.

In: one request's verify rounds, the scheduler's status, the heartbeats of other replicas. Out: verdicts on canaries,
alarms.
Only the courier uses it. No torch.
"""
