"""What the benchmarks share: a server with a board, paired runs, requests answered whole, and waits around a swap.

In: a running server. Out: paired figures with their spread.
"""
