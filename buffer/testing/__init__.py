"""Buffer and board in memory, for tests: they keep the contract of their Redis twins in one process.

In and out: as for buffer/redis_stream.py and buffer/redis_board.py. No production code enters.
"""
