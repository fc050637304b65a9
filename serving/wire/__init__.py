"""Scheduler process and courier process, any thread: the code for messages between them, and the counts.

In: nothing but plain host data. Out: messages as bytes, and back; one request's share of a forward; counters.
Capture, courier and watch use it. No torch: the courier would take seconds and 200 MiB more to start.
"""
