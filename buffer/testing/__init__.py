"""In-memory twins of the Redis buffer and board, for tests alone: nothing in the product may import this package.

They keep the same contracts in one process, so that a test needs no Redis. In and out: as for buffer/redis_stream.py
and buffer/redis_board.py.
"""
