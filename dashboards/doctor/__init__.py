"""The board's side of `paceline doctor`: Redis, what is on the board, and its members. Reads and never writes.

In: settings and a Redis. Out: findings, one sentence each with what to do. A server's side is serving/launch/doctor.py.
"""
