"""The learning bench: traces recorded from the real server, replayed as a stream under one objective after another.

Run by benchmarks/learning/record.py and bench.py; no part of the installed package.
"""
