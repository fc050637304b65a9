"""Readings: what people look at. Counters as members send them, figures with their intervals, and what each one means.

In: heartbeats and history of members, the board's state. Out: readings, whose definitions stand in definitions.py.
Command line, MLflow and documentation read figures from here, so that all of them show the same ones.
"""
