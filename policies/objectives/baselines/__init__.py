"""Objectives of other systems, kept to be compared with: the learning bench selects them, production cannot.

In: as for the objectives of production. Out: a scalar loss.
Only the learning bench enters.
"""
