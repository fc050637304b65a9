"""How soon the demo's closed loop serves well again after traffic shifted, by one state of the code and by another.

In: git revisions, settings and seeds. Out: runs of the real demo, kept one by one, and what they say in pairs.
benchmarks/shift_recovery.py enters.
"""
