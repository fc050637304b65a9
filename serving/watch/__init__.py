"""Courier process, its only thread: judges drafts and capture by the rounds as they are served.

In: one request's verify rounds, the heartbeats of other replicas. Out: verdicts on canaries, alarms.
Only the courier enters. No torch.
"""
