"""What the benchmarks share: a server with a board, paired runs, requests answered whole, and waits around a swap.

A script of benchmarks/ finds it beside itself; it is no part of the installed package.
"""
