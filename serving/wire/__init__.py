"""Both ends of the line between scheduler and courier process: what crosses it, and the counts of both sides.

In: nothing but plain host data. Out: messages as bytes, and back; one request's share of a forward; counters.
Capture, courier and watch enter. No torch: the courier process would need seconds and 200 MiB more to start.
"""
