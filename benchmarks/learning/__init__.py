"""The learning bench: traces recorded from the real server, replayed as a stream under one objective after another.

In: options of record.py and bench.py. Out: tables and plots of accepted drafts by objective, seed and chunk.
"""
