"""Pacing policies of other systems, kept to be compared with on recorded rounds.

In: as for policies/pacing. Out: the number of draft steps of the next decode step.
Only benchmarks/pacing.py enters.
"""
