"""Scheduler process: new draft weights, staged and asked for by threads of their own, copied in by the scheduler's.

In: versions on the board, weights files. Out: the live draft, and what each swap did.
Swapper and staging threads wait for Redis and disks; the scheduler thread never waits for them.
"""
