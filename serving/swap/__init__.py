"""Scheduler process, three kinds of thread: a swapper asks for new weights, stagers load them, the scheduler copies.

In: versions on the board, weights files. Out: the live draft, and what each swap did.
Swapper and staging threads wait for Redis and disks; the scheduler thread never waits for them. On several
tensor-parallel ranks every scheduler process stages and copies, and the entry rank's alone has a swapper.
"""
