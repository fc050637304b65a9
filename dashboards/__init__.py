"""Tables and figures of the running system for people. Reads and never writes.

In: board states, heartbeats and counts. Out: rows and tables to print.
Used by the command line, rig, demo and benchmarks. Never imports torch, celery or sglang.
"""
