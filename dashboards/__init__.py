"""A window: readings of the running system for people. It reads and never writes.

In: board states, heartbeats and counts. Out: readings to print or plot.
Only the command line and the demo enter. This room never knows torch, celery or sglang.
"""
